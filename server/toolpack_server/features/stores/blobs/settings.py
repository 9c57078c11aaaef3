"""Settings of blobs outside the store."""

from pydantic import Field

from toolpack_server.base.settings import FeatureSettings


class BlobsSettings(FeatureSettings, feature="blobs"):
    url: str = Field(
        "",
        description="Where blobs of 32 KB and more are stored: file:///path, s3://bucket/prefix, gs:// or az://; "
        "default: in the store.",
    )
