"""Storage of large blobs outside the store, in a folder or an object store."""
