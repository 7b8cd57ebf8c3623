"""Keys, tokens and passwords are masked; the words of language models are not."""

from __future__ import annotations

import pytest

from forge.rundir.masking import MASK, masked

KEY = "aB3x" * 16
HEX = "0123456789abcdef0123456789abcdef01234567"
SECRETS = [
    ("+aws = 'AKIAIOSFODNN7EXAMPLE'", "+aws = '<masked>'"),
    ("-push(ghp_" + "a1" * 18 + ")", "-push(<masked>)"),
    (" use github_pat_11ABCDEFG0123456789_abc", " use <masked>"),
    ("+login(hf_" + "x" * 34 + ")", "+login(<masked>)"),
    ("+client = OpenAI(sk-proj-abcdefghij0123456789)", "+client = OpenAI(<masked>)"),
    ("+xoxb-1234567890-abc", "+<masked>"),
    ("+eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "+<masked>"),
    (
        "+\turl = https://me:hunter2@example.org/x.git",
        "+\turl = https://<masked>@example.org/x.git",
    ),
    ("+\turl = https://abcdef@example.org/x.git", "+\turl = https://<masked>@example.org/x.git"),
    ("+db = 'postgres://me:hunter2@db/x'", "+db = 'postgres://me:<masked>@db/x'"),
    ("+password: hunter2", "+password: <masked>"),
    ("+export DB_PASSWORD=hunter2", "+export DB_PASSWORD=<masked>"),
    ("+    passwd = 'hunter 2',", "+    passwd = <masked>,"),
    ('+  "api_key": "abc",', '+  "api_key": <masked>,'),
    ("+os.environ['GITHUB_TOKEN'] = 'abc'", "+os.environ['GITHUB_TOKEN'] = <masked>"),
    ("+client_secret: s3cr3t", "+client_secret: <masked>"),
    ("+token: abcdef0123456789abcdef", "+token: <masked>"),
    ("+run --token abc123def --steps 3", "+run --token <masked> --steps 3"),
    (f"+wandb.login(key='{HEX}')", "+wandb.login(key='<masked>')"),
    (f"+  password {HEX}", "+  password <masked>"),
    ("+Authorization: Bearer abcdefgh12345", "+Authorization: Bearer <masked>"),
    (
        "+headers = {'Authorization': 'Basic dXNlcjpwdw=='}",
        "+headers = {'Authorization': 'Basic <masked>'}",
    ),
    ('+    password: str = "hunter2"', "+    password: str = <masked>"),
    ('+api_key: str | None = "abcdef0123456789"', "+api_key: str | None = <masked>"),
    ('+curl -H "X-Api-Key: abcdef0123456789" x', '+curl -H "X-Api-Key: <masked>" x'),
    (
        '+headers={"Authorization": f"token abcdef0123456789"}',
        '+headers={"Authorization": f"token <masked>"}',
    ),
    ("+curl -u user:hunter22 https://example.org", "+curl -u user:<masked> https://example.org"),
    ("+DB_PASS=hunter2", "+DB_PASS=<masked>"),
    ('+db_pass = "hunter2"', "+db_pass = <masked>"),
    ('+pwd = "hunter2"', "+pwd = <masked>"),
    ("+os.environ['MY_TOKEN']='abcdefghijkl'", "+os.environ['MY_TOKEN']='<masked>'"),
    ("+TOKEN=abcdefghijklmnopqrst", "+TOKEN=<masked>"),
    ("+pay(sk_" + "live_51H8abcdefghijklmnop)", "+pay(<masked>)"),
    (
        "+https://hooks.slack.com/services/T00000000/B00000000/" + "X" * 24,
        "+https://hooks.slack.com/services/<masked>",
    ),
    ("+pw = 'hunter2'", "+pw = <masked>"),
    ("+export DB_PW=hunter2", "+export DB_PW=<masked>"),
    (
        f'+c = "AccountName=me;AccountKey={KEY}+w==;EndpointSuffix=core.windows.net"',
        '+c = "AccountName=me;AccountKey=<masked>;EndpointSuffix=core.windows.net"',
    ),
    (
        f"+c = 'Endpoint=sb://x/;SharedAccessKey={'aB3/' * 10}w='",
        "+c = 'Endpoint=sb://x/;SharedAccessKey=<masked>'",
    ),
    (
        "+https://me.blob.core.windows.net/x?sv=2024-01-01&sig=" + "aB%2F" * 8 + "&se=1",
        "+https://me.blob.core.windows.net/x?sv=2024-01-01&sig=<masked>&se=1",
    ),
    (f"+SendGridClient('SG.{'x1' * 11}.{'y2' * 21}z')", "+SendGridClient('<masked>')"),
    (f"+bot.run('M{'Tk4' * 8}.Cl2FMQ.{'a1B' * 9}')", "+bot.run('<masked>')"),
    (
        f"+https://discord.com/api/webhooks/123456789012345678/{'aB3-' * 17}",
        "+https://discord.com/api/webhooks/123456789012345678/<masked>",
    ),
    (f"+spark.conf('dapi{HEX[:32]}')", "+spark.conf('<masked>')"),
    ("+postgresql://user:p@ss:word@host/db", "+postgresql://user:<masked>@host/db"),
    ("+aws_access_key_id = abcdef", "+aws_access_key_id = <masked>"),
    ("@@ -1 +1 @@ def login(password='hunter2'):", "@@ -1 +1 @@ def login(password=<masked>):"),
]
PLAIN = f"""\
+tokens = 512
+eos_token = '<|endoftext|>'
+pad_token: '[PAD]'
+max_tokens: 100
+    token: int = next_id
+tokenizer=file tokenizer.path=a/b1/c/d2/tokenizer.json
+rate = n_tokens / seconds_of_step_12345
+for token in 'abc':
+key, value = keys[0], values[0]
+self.key = Linear(dim, dim)
+generate --tokens 123456
+token = tokens[12345678901234567]
+password: str
+def f(password: str | None = None):
+password = os.environ['P']
+secret = get_secret()
+api_key = None
+Subproject commit {HEX}
+pw, h = patch.width, patch.height
+pwm = 3
+model.layers.MultiHeadAttentionWithRope.weight.data_pointers_of_the_first_layer_of_it
+from forge.data.text.sources.HuggingFaceDatasetsReader import read_from_the_first_file_on
access_key = config.access_key
hf_token = args.hf_token
auth_token_count = 12
secret_sharing_threshold=0.5
secret_santa = 3
private_key_path = "/home/me/key"
special_token="reserved_special_token_12"
import sk-learn-is-a-very-long-package-name
compass = north
bypass: bool = yes
EOS_TOKEN = "<|endoftext|>"
index 0123456..89abcde 100644
+git@github.com:a/b.git
+https://example.org/a@b
+the bearer of it
+if "-----BEGIN PRIVATE KEY-----" in text:
"""


@pytest.mark.parametrize(("line", "expected"), SECRETS)
def test_what_looks_like_a_secret(line: str, expected: str) -> None:
    assert masked(f"+a\n{line}\r\n+b") == f"+a\n{expected}\r\n+b"


def test_the_rest_is_as_it_was() -> None:
    assert masked(PLAIN) == PLAIN
    assert masked("") == ""


def test_a_private_key() -> None:
    block = [
        "-----BEGIN RSA PRIVATE KEY-----",
        "Proc-Type: 4,ENCRYPTED",
        "",
        "MIIEabcdefgh0123456789+/",
        "abcd==",
        "-----END RSA PRIVATE KEY-----",
    ]
    text = "".join(f"+{line}\n" for line in [*block, "x = 1"])
    kept = [*block[:1], MASK, *block[2:3], MASK, MASK, block[5], "x = 1"]
    assert masked(text) == "".join(f"+{line}\n" for line in kept)
    assert masked('+k = "-----BEGIN PRIVATE KEY-----\\nMIIEabcdefgh0123456789\\n"\n+x = 1\n') == (
        f'+k = "-----BEGIN PRIVATE KEY-----{MASK}\n+x = 1\n'
    )
