"""`model=hf`: the model described by a Hugging Face folder."""

from __future__ import annotations

from forge.config.field import opt, section
from forge.config.model.decoder import Decoder


@section
class FolderDecoder(Decoder):
    """The decoder whose options config.json of a folder gives; others may be set over them."""

    schema_name = "hf"
    path: str = opt(
        "",
        "folder of a model, as save_pretrained of transformers writes it, or its id on the hub, "
        "ORG/NAME, of which the cache of Hugging Face has the files or gets them",
        path=True,
    )
    revision: str = opt("main", "with an id: its branch, tag or commit on the hub")
    pretrained: bool = opt(
        True,
        "begin with the weights of the folder, through checkpoint.init_from; false = with new"
        " weights",
    )
    ignore_keys: list[str] = opt(
        [], "keys of config.json that are known to change nothing, where forge refuses them"
    )
    grow_vocab: bool = opt(
        False,
        "where the tokenizer has more ids than the folder has vocabulary rows, add rows to "
        "embedding and head, each the mean of the old ones",
    )


def grows(section: Decoder) -> bool:
    """Whether rows of vocabulary may be added to the folder's rows."""
    return isinstance(section, FolderDecoder) and section.grow_vocab
