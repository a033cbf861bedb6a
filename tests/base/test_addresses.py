"""Addresses are shown and stored without what opens a door."""

from __future__ import annotations

import pickle

import pytest

from rlds_cli.base.visible import quoted, shown, within
from rlds_cli.errors import DownloadFailed, InvalidId
from rlds_cli.places import Address


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "url, expected",
    [
        ("https://host/a/b.h5", "https://host/a/b.h5"),
        ("https://user:hunter2@host:80/a.h5", "https://host:80/a.h5"),
        ("ftp://user:hunter2@host/a.h5", "ftp://host/a.h5"),
        ("s3a://AKID:hunter2@bucket/a.h5", "s3a://bucket/a.h5"),
        ("https://hunter2@host/a.h5", "https://host/a.h5"),
        ("https://user%3Ahunter2%40host/a.h5", "https://host/a.h5"),
        ("https://user:hunt@er2@host/a.h5", "https://host/a.h5"),
        ("https://user:hunt/er2@host/a.h5", "https://host/a.h5"),
        ("https://user:hunt?er2@host/a.h5", "https://host/a.h5"),
        ("https://user:hunt#er2@host/a.h5", "https://host/a.h5"),
        ("https://user:hunter2", "https://user:***"),
        ("https:/user:hunter2@host/a.h5", "https:/host/a.h5"),
        ("HTTPS://user:hunter2@host/a.h5", "HTTPS://host/a.h5"),
        ("//user:hunter2@host/a.h5", "//host/a.h5"),
        ("http://[::1", "http://[::1"),
        ("http://[::1]:80/a.h5?pwd=hunter2", "http://[::1]:80/a.h5?pwd=***"),
        ("https://host/a.h5?token=hunter2", "https://host/a.h5?token=***"),
        ("https://host/a.h5?pwd=hunter2&jwt=hunter2", "https://host/a.h5?pwd=***&jwt=***"),
        ("https://host/a.h5?whatever=hunter2", "https://host/a.h5?whatever=***"),
        ("https://host/a.h5?a=1;sig=hunter2", "https://host/a.h5?a=***;sig=***"),
        ("https://host/a.h5?sv=2020&se=2030&sp=r&sig=hunter2", "https://host/a.h5?sv=***&se=***&sp=***&sig=***"),
        ("https://host/a.h5?X-Amz-Credential=hunter2", "https://host/a.h5?X-Amz-Credential=***"),
        ("https://host/a.h5?X-Amz-Date=1&X-Amz-Signature=hunter2", "https://host/a.h5"),
        ("https://host/a.h5?%74oken=hunter2", "https://host/a.h5?***"),
        ("https://host/a.h5?hunter2", "https://host/a.h5?***"),
        ("https://host/a.h5?aHVudGVyMg==", "https://host/a.h5?***"),
        ("https://host/a.h5?token=hunter2 and more", "https://host/a.h5?token=***"),
        ("https://host/a.h5?a=b?token=hunter2", "https://host/a.h5?a=***"),
        ("https://host/a.h5#access_token=hunter2", "https://host/a.h5"),
        ("https://host/a.h5#?access_token=hunter2", "https://host/a.h5"),
        ("https://host/a.h5?download=1&versionId=3Lg4.x", "https://host/a.h5?download=1&versionId=3Lg4.x"),
        ("https://host/get?persistentId=doi:10/1", "https://host/get?persistentId=doi:10/1"),
        ("https://host/get?path=d4rl/a.h5&revision=main", "https://host/get?path=d4rl/a.h5&revision=main"),
        ("https://host/get?path=https://user:hunter2@host", "https://host/get?path=***"),
        ("https://host/d%3Ftoken%3Dhunter2/a.h5", "https://host/d%3Ftoken%3D***/a.h5"),
        ("https://host/a;jsessionid=hunter2/a.h5", "https://host/a;jsessionid=***/a.h5"),
        ("https://web/old/https://user:hunter2@host/a.h5", "https://web/old/https://host/a.h5"),
        ("https://web/old/https%3A%2F%2Fuser%3Ahunter2%40host/a.h5", "https://web/old/https%3A%2F%2Fhost/a.h5"),
        ("hf://datasets/o/r@refs/convert/parquet/a.h5", "hf://datasets/o/r@refs/convert/parquet/a.h5"),
        ("signed-s3://eu-west-1@data/x y.h5", "signed-s3://eu-west-1@data/x y.h5"),
        ("signed-s3://user:hunter2@data/x.h5", "signed-s3://data/x.h5"),
        ("file:///home/me/a.h5", "file:///home/me/a.h5"),
        ("/home/me/a?b=c.h5", "/home/me/a?b=c.h5"),
    ],
)
def test_an_address(url: str, expected: str) -> None:
    assert shown(url) == expected
    assert shown(expected) == expected


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "text, expected",
    [
        ("nothing at all: local/x@y, 5 of 6?", "nothing at all: local/x@y, 5 of 6?"),
        ("(https://u:hunter2@h/a?b=hunter2).", "(https://h/a?b=***)."),
        ("ftp://u:hunter2@h/a, and https://h/b?sig=hunter2; more", "ftp://h/a, and https://h/b?sig=***; more"),
        ("Max retries exceeded with url: /p?token=hunt,er2 (Caused by", "url: /p?token=*** (Caused by"),
        ("url: /p?aHVudGVyMmh1bnRlcjI=", "url: /p?***"),
        ("Failed to parse: user:hunter2@host:80/x", "Failed to parse: host:80/x"),
        ('{"url": "https://u:hunter2@h/x?token=hunter2","n":3}', '{"url": "https://h/x?token=***","n":3}'),
        ("'https://h/x?jwt=a.hunter2': HTTP 404", "'https://h/x?jwt=***': HTTP 404"),
        ("http://u:hunt'er2@h/x", "http://h/x"),
        ("https:\\/\\/u:hunter2@h\\/x", "https:\\/\\/h\\/x"),
        ("one\nhttps://u:hunter2@h/x\n/y?pwd=hunter2\n", "one\nhttps://h/x\n/y?pwd=***\n"),
        ("http:/u:hunter2@h/x cannot be read", "http:/h/x cannot be read"),  # as a Path writes it
        ("header value: Bearer hunter2hunter2", "header value: Bearer ***"),
        ("hf://datasets/OWNER/REPO[/PATH][@REVISION]", "hf://datasets/OWNER/REPO[/PATH][@REVISION]"),
        ("https://openreview.net/forum?id=8kbp23tSGYv}}", "https://openreview.net/forum?id=8kbp23tSGYv}}"),
        ("http(s)://, hf://datasets/, gs://, s3://", "http(s)://, hf://datasets/, gs://, s3://"),
    ],
)
def test_addresses_in_a_text(text: str, expected: str) -> None:
    assert within(text).endswith(expected)
    assert within(within(text)) == within(text)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", ["/", "a.", "://", "%3Fa", ";token", "?", "a:", "@", "//x", "&a", "bearer "])
def test_a_text_is_read_once(part: str) -> None:
    """A pattern that went back over 20,000 repetitions would take minutes here."""
    text = part * 20_000
    for address in (text, f"http://{text}", f"http://h/{text}", f"http://h?{text}"):
        assert "hunter2" not in within(shown(f"{address}?hunter2hunter2hunter2"))


def test_words_of_a_server() -> None:
    said = "Bad api_key=hunter2, password=hunter2; see https://h/x?a=hunter2: Unauthorized: no token"
    assert quoted(said) == "Bad api_key=***, password=***; see https://h/x?a=***: Unauthorized: no token"
    assert within("--arg sigma=0.1 side=left") == "--arg sigma=0.1 side=left"


def test_an_error_holds_no_secret() -> None:
    error = DownloadFailed(
        "https://u:hunter2@h/x said no.", hint="rlds download x --from ftp://u:hunter2@h/x?a=hunter2"
    )
    for text in (str(error), repr(error), str(error.args), str(pickle.loads(pickle.dumps(error)))):
        assert "hunter2" not in text and "h/x" in text


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("s3://lab/a/b/", "s3://lab/a/b"),
        ("gs://lab", "gs://lab"),
        ("s3://lab/a/rlds.json", "s3://lab/a"),
        ("hf://datasets/me/press@v1/sub", "hf://datasets/me/press/sub@v1"),
        ("https://huggingface.co/datasets/me/press", "hf://datasets/me/press"),
        ("https://u:hunter2@host:80/a%20b?token=hunter2", "https://host:80/a%20b/"),
        ("file:///a/b", "/a/b"),
        ("/a/../b/", "/b"),
        ("s3://lab/a#rlds1:7c1f-09ab-55e2", "s3://lab/a#rlds1:7c1f09ab55e2"),
    ],
)
def test_addresses_of_datasets(text: str, parsed: str) -> None:
    found = Address.parse(text)
    assert found.pinned == parsed and Address.parse(parsed).pinned == parsed
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(
    "text", ["", "ftp://host/a", "s3://", "s3://LAB/a", "s3://lab/../a", "hf://me/press", "https://", "http://[::1/a"]
)
def test_no_addresses_of_datasets(text: str) -> None:
    with pytest.raises(InvalidId):
        Address.parse(text)
