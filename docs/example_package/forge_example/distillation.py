"""A student that reads noised text learns what a frozen teacher says of the text itself."""

import numpy as np
import torch
import torch.nn.functional as F

from forge.api import Losses, Objective, head_of


class Distillation(Objective):
    """Sum over positions of KL(teacher || student) (Xie et al. 2019, arXiv:1911.04252)."""

    along_sequence = ("tokens", "text", "kept")  # each [batch, seq]
    sums, maxima = ("kl", "same", "kept"), ("largest",)

    def collate(self, samples):
        fields = np.zeros((3, len(samples), samples.seq_len), np.int64)
        for row, sample in enumerate(samples):
            text = sample.tokens[:-1]
            unseen = np.random.default_rng(sample.number).random(len(text)) < self.section.noise
            fields[:, row, : len(text)] = np.where(unseen, 0, text), text, np.ones_like(text)
        return dict(zip(self.along_sequence, torch.from_numpy(fields), strict=True))

    def count(self, samples):
        return len(samples) * samples.seq_len

    def __call__(self, model, batch):
        kl = self.evaluate(model, batch)["kl"]
        return Losses(total=kl, sums={"loss": kl.detach()})

    def evaluate(self, model, batch):
        student, kept = log_p(model, batch["tokens"]), batch["kept"]
        with torch.no_grad():
            teacher = log_p(self.models["teacher"], batch["text"])
        kl = F.kl_div(student, teacher, log_target=True, reduction="none").sum(-1) * kept
        same = (teacher.argmax(-1) == student.argmax(-1)) * kept
        return {"kl": kl.sum(), "same": same.sum(), "kept": kept.sum(), "largest": kl.max()}

    def metrics(self, totals):
        loss, agreement = (totals[name] / totals["kept"] for name in ("kl", "same"))
        return {"loss": loss, "agreement": agreement, "largest_loss": totals["largest"]}


def log_p(model, tokens):
    hidden = model.hidden(tokens)  # which gathers the head, where it is sharded
    return head_of(model).logits(hidden).log_softmax(-1)
