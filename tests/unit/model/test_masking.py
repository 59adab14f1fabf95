import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.model.untrusted_text import mask_text, mask_words, names_secret

SECRET = "s3cr3t-Value_0123456789abcdef"
HIDDEN = [
    f"python train.py --api-key={SECRET}",
    f"python train.py --api-key {SECRET} --epochs 3",
    f"python train.py --api_key '{SECRET}'",
    f"--hf-token={SECRET}",
    f"--wandb.api_key={SECRET}",
    f"HF_TOKEN={SECRET} python x.py",
    f"AWS_SECRET_ACCESS_KEY={SECRET}",
    f"env PGPASSWORD={SECRET} psql",
    f"password={SECRET}",
    f"host=db user=ann password={SECRET} dbname=x",
    f'{{"password": "{SECRET}", "user": "ann"}}',
    f"password: {SECRET}",
    f"postgresql://ann:{SECRET}@db/gpudiag",
    f"could not reach postgresql+psycopg://ann:{SECRET}@db:5432/gpudiag?sslmode=require now",
    f"postgresql://ann:{SECRET}/with/slashes@db/gpudiag",
    f"https://{SECRET}@git.example/a.git",
    f"git clone https://oauth2:{SECRET}@git.example/a.git",
    f"curl https://a.example/data?token={SECRET}&x=1",
    f"https://a.example/x?X-Amz-Signature=1&access_token={SECRET}",
    f"https://a.example/x?sv=1&sig={SECRET}",
    f"redis://:{SECRET}@cache:6379/0",
    f"curl -H Authorization: Bearer {SECRET}",
    f"Authorization: Basic {SECRET}",
    f"authorization=Bearer {SECRET}",
    f"--bearer {SECRET}",
    f"--apiKey={SECRET}",
    f"--authToken {SECRET}",
    "hf_abcdefghijklmnopqrstuvwx",
    "wandb login ghp_abcdefghijklmnopqrstuvwxyz0123",
    "sk-proj-abcdefghijklmnop0123456789",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc-def",
]
KEPT = [
    "python train.py --max-tokens 4096 --tokenizer llama --num_tokens=5",
    "python train.py --token-file /etc/gpudiag/tokens --author ann --keyword x",
    "torchrun --nproc-per-node 8 --rdzv-endpoint host:29500 train.py",
    "python -m http.server 80",
    "https://a.example:8080/path?page=2#top",
    "http://[::1]:4783/",
    "nvidia-smi -q -d MEMORY",
    "the compass of authors: monkeys, keys and turkeys",
    "tcp://10.0.0.1:29500",
    "postgresql://db/gpudiag",
    "postgresql+psycopg://ann@127.0.0.1:57803/postgres",
    "ssh://git@git.example/a.git",
]


@pytest.mark.parametrize("text", HIDDEN)
def test_a_secret_is_masked_and_the_rest_stays(text):
    masked = mask_text(text)
    assert SECRET not in masked
    assert masked != text
    assert "***" in masked


@pytest.mark.parametrize("text", KEPT)
def test_what_is_no_secret_stays(text):
    assert mask_text(text) == text


def test_the_rest_of_a_url_stays():
    assert mask_text(f"postgresql://ann:{SECRET}@db:5432/x?a=1") == "postgresql://ann:***@db:5432/x?a=1"


def test_a_command_line_is_masked_word_by_word():
    words = [
        "python",
        "x.py",
        "--password",
        "two words",
        "--api-key",
        "a b",
        "--flag",
        "--token",
        "-v",
        "PW=1",
    ]
    masked = ["python", "x.py", "--password", "***", "--api-key", "***", "--flag", "--token", "-v", "PW=1"]
    assert mask_words(words) == masked


@pytest.mark.parametrize("name", ["HF_TOKEN", "apiKey", "db.password", "NCCL_PSK", "AWS_SECRET_ACCESS_KEY"])
def test_names_of_secrets(name):
    assert names_secret(name)


@pytest.mark.parametrize("name", ["TOKENIZER", "max_tokens", "token_file", "MONKEY", "RANK", "keyboard"])
def test_names_of_no_secrets(name):
    assert not names_secret(name)


@given(st.text(max_size=200))
def test_masking_ends_and_twice_is_once(text):
    once = mask_text(text)
    assert mask_text(once) == once


def test_masking_a_long_line_takes_no_time():
    for text in (
        "a:" * 50_000 + "://",
        "://" * 50_000,
        "token" * 20_000,
        "--" * 50_000 + "key",
        "http://" + "a" * 100_000,
    ):
        assert isinstance(mask_text(text), str)
