"""What S3 and boto3 say, as one sentence with a remedy.

Neither the service's own words nor boto3's are repeated: they may hold a key id, a proxy's password or a
page of HTML. A code that is not known here is named. Knows no request.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    LoginError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    ResponseStreamingError,
    SSLError,
    SSOError,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.parsers import ResponseParserError

from storage.errors import StorageUnavailableError
from storage.s3_address import S3Address

UNCONDITIONAL_CODES: Final = frozenset({"NotImplemented", "InvalidArgument", "InvalidRequest"})
"""How services answer that do not know `If-None-Match` on a PUT and say so."""

_DENIED = (
    "access is denied: these credentials need s3:GetObject, s3:PutObject and s3:AbortMultipartUpload on this"
    " prefix, and s3:ListBucket on the bucket (without it a missing name is denied too)"
)
_BAD_CREDENTIALS = (
    "the service does not accept these credentials: check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the"
    " profile"
)
_EXPIRED = "the credentials have expired: log in again, or renew AWS_SESSION_TOKEN"
_OTHER_REGION = "the bucket lies in another region: add region=... to the address"
_NO_SERVICE = "what answers there is no S3 service: check the endpoint"
_FULL = "the bucket is full: free some space or raise its quota"
_BUSY = "the service is overloaded or broken: the same may succeed later"
_UNREACHABLE = "it cannot be reached or does not answer: check the endpoint, its port and the network"

_BY_CODE: Final[Mapping[str, str]] = {
    "NoSuchBucket": "there is no such bucket: create it, or correct the address",
    "InvalidBucketName": "the service takes no bucket of this name: correct the address",
    "AccessDenied": _DENIED,
    "AllAccessDisabled": _DENIED,
    "InvalidAccessKeyId": _BAD_CREDENTIALS,
    "SignatureDoesNotMatch": _BAD_CREDENTIALS,
    "InvalidToken": _BAD_CREDENTIALS,
    "AuthFailure": _BAD_CREDENTIALS,
    "Unauthorized": _BAD_CREDENTIALS,
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestTimeTooSkewed": "this machine's clock is off by more than the service accepts: set it",
    "PermanentRedirect": _OTHER_REGION,
    "TemporaryRedirect": _OTHER_REGION,
    "AuthorizationHeaderMalformed": _OTHER_REGION,
    "IllegalLocationConstraintException": _OTHER_REGION,
    "QuotaExceeded": _FULL,
    "XMinioStorageFull": _FULL,
    "EntityTooLarge": "the service takes no object of this size",
}
_BY_STATUS: Final[Mapping[int, str]] = {
    301: _OTHER_REGION,
    307: _OTHER_REGION,
    401: _BAD_CREDENTIALS,
    403: f"{_DENIED}, or they are not known there",  # a HEAD is answered without a code
    404: "there is no such bucket or name: correct the address",
    405: _NO_SERVICE,
    429: _BUSY,
    507: _FULL,
}
# The first that fits counts: an SSLError is a connection error too.
_BY_TYPE: Final[tuple[tuple[tuple[type[Exception], ...], str], ...]] = (
    ((ResponseParserError,), _NO_SERVICE),
    ((SSLError,), "its certificate is not trusted: name its authority's file in AWS_CA_BUNDLE"),
    (
        (ProxyConnectionError,),
        "the proxy of this machine's environment cannot be reached: check HTTPS_PROXY and NO_PROXY",
    ),
    (
        (IncompleteReadError, ResponseStreamingError),
        "the connection broke off before the end: the same may succeed later",
    ),
    ((HTTPClientError, BotoConnectionError), _UNREACHABLE),
    (
        (
            NoCredentialsError,
            PartialCredentialsError,
            CredentialRetrievalError,
            ProfileNotFound,
            TokenRetrievalError,
            SSOError,
            LoginError,
        ),
        "no usable credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile"
        " (AWS_PROFILE) or an instance role",
    ),
)


@contextmanager
def translated(address: S3Address, verb: str, key: str) -> Iterator[None]:
    """Turn what boto3 raises into StorageUnavailableError with the address, the name and a remedy."""
    try:
        yield
    except (BotoCoreError, ClientError, ResponseParserError) as error:
        # Not chained: boto3's own messages may name a proxy with its password.
        raise StorageUnavailableError(f"cannot {verb} {key!r} in {address.url}: {remedy_of(error)}") from None


def code_of(error: ClientError) -> tuple[str, int]:
    """Return the service's code, harmless to print, and the HTTP status."""
    response: Any = error.response
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return re.sub(r"\W", "", str(response.get("Error", {}).get("Code", "")))[:60], status


def remedy_of(error: Exception) -> str:
    """Return what happened and what to do about it."""
    if isinstance(error, ClientError):
        return _remedy_of_answer(*code_of(error))
    for types, remedy in _BY_TYPE:
        if isinstance(error, types):
            return remedy
    return f"boto3 refused the request ({type(error).__name__})"


def _remedy_of_answer(code: str, status: int) -> str:
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status >= 500 and code != "NotImplemented":
        return _BUSY
    return f"the service answered {code or 'nothing more'} (HTTP {status})"
