"""Storage of large blobs outside the store, in a folder or a bucket of an object store."""
