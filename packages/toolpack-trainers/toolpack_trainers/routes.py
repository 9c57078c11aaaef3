"""The paths that two protocols share, with their endpoints."""

SHARED = {
    "/reset": "toolpack_trainers.shared_paths:ResetEndpoint",
    "/step": "toolpack_trainers.shared_paths:StepEndpoint",
}
