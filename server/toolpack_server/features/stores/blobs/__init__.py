"""Large blobs outside the store: in a folder, or in an object store."""
