"""What an s3:// address may say, and that nothing secret comes back out of one that is refused."""

import pytest

from storage.errors import StorageAddressError
from storage.s3_address import S3Address, parse_s3_address

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("s3://films", S3Address(bucket="films")),
        ("s3://films/", S3Address(bucket="films")),
        ("S3://films/a/b/", S3Address(bucket="films", prefix="a/b")),
        (
            "s3://my.films/a?region=eu-central-1",
            S3Address(bucket="my.films", prefix="a", region="eu-central-1"),
        ),
        ("s3://films?endpoint=http://minio:9000/", S3Address(bucket="films", endpoint="http://minio:9000")),
        (
            "s3://films/x?endpoint=https%3A%2F%2Fs.host%2Fstorage%2Fs3&region=auto&addressing=virtual"
            "&public_endpoint=https://films.host",
            S3Address(
                bucket="films",
                prefix="x",
                endpoint="https://s.host/storage/s3",
                region="auto",
                addressing="virtual",
                public_endpoint="https://films.host",
            ),
        ),
        ("s3://films?endpoint=http://[::1]:9000", S3Address(bucket="films", endpoint="http://[::1]:9000")),
    ],
)
def test_an_address_is_read_and_written_back(url: str, address: S3Address) -> None:
    assert parse_s3_address(url) == address
    assert parse_s3_address(address.url) == address


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (f"s3://AKIAEXAMPLE:{SECRET}@films/x", "holds no credentials"),
        (f"s3://AKIAEXAMPLE:{SECRET.replace('/', '')}@films/x", "holds no credentials"),
        ("s3://films:9000/x", "holds no credentials"),
        (f"s3://films?endpoint=https://AKIAEXAMPLE:{SECRET}@host", "holds no credentials"),
        (
            f"s3://films?endpoint=https://AKIAEXAMPLE%3A{SECRET}%40host",
            "endpoint of this s3:// address is none",
        ),
        (f"s3://films?secret_access_key={SECRET}", "no option 'secret_access_key'"),
        (f"s3://films?{SECRET}", "no option"),
        (f"s3://films?endpoint=https://host?key={SECRET}", "endpoint of this s3:// address is none"),
        (f"s3://films?endpoint={SECRET}", "endpoint of this s3:// address is none"),
        (f"s3://films?region={SECRET}", "region"),
        (f"s3://films?addressing={SECRET}", "path or virtual"),
        (f"s3://films/x#{SECRET}", "names no bucket"),
        (f"s3://[{SECRET}", "cannot be read"),
        ("s3:///x", "names no bucket"),
        ("s3://x", "names no bucket"),
        ("s3://films/../x", "prefix"),
        ("s3://films/a b", "prefix"),
        (f"s3://films/{'x' * 257}", "prefix"),
        ("s3://films?endpont=https://host", "did you mean 'endpoint'"),
        ("s3://films?endpoint=https://a&endpoint=https://b", "given twice"),
        ("s3://films?endpoint=ftp://host", "endpoint=https://host:port"),
        ("s3://films?endpoint=https://", "endpoint=https://host:port"),
        ("s3://films?endpoint=https://host:99999", "endpoint=https://host:port"),
        ("s3://films?public_endpoint=films.host", "public_endpoint=https://host:port"),
    ],
)
def test_an_address_that_is_refused_is_explained_and_not_repeated(url: str, message: str) -> None:
    with pytest.raises(StorageAddressError) as caught:
        parse_s3_address(url)

    assert message in str(caught.value)
    assert "KEY" not in str(caught.value).replace("AWS_ACCESS_KEY_ID", "").replace(
        "AWS_SECRET_ACCESS_KEY", ""
    )
    assert "AKIAEXAMPLE" not in str(caught.value)


def test_keys_lie_below_the_prefix() -> None:
    address = S3Address(bucket="films", prefix="a/b")

    assert address.object_name("runs/x.json") == "a/b/runs/x.json"
    assert address.key_of("a/b/runs/x.json") == "runs/x.json"
    assert S3Address(bucket="films").object_name("runs/x.json") == "runs/x.json"
