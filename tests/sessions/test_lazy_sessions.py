"""Clients get the same views and diffs of a lazy environment as of an environment that is stored as a whole."""

import serving
from serving import PACKS, refused

from toolpack_server.packs.loading import load_catalog

CATALOG = load_catalog((PACKS,), ("archive",))
POINTERS = [
    "",
    "/archive",
    "/archive/cards",
    "/archive/cards/c7",
    "/archive/cards/c1/see/0/title",
    "/archive/recent/3",
    "/archive/papers",
    "/archive/papers/plan.txt",
]
MISSING = [
    "/archive/cards/none",
    "/archive/cards/c7/none",
    "/archive/recent/99",
    "/archive/recent/-",
    "/none",
    "/",
    "no pointer",
]


def archive(**settings):
    return serving.Bench(CATALOG, pack_dir=(PACKS,), packs=("archive",), **settings)


def history(bench):
    """Create a session and two forks with many versions. Return the id and the newest version of each session."""
    first = bench.create("archive")
    for number in range(12):
        bench.result(first, "rename", key=f"c{number}", title=f"New {number}")
    one, other = (fork["session_id"] for fork in bench.rpc("fork_session", session_id=first, count=2))
    bench.result(one, "refer", key="c5", other="c1")
    bench.result(one, "rename", key="c2", title="Seen by c1 and c5")
    bench.result(one, "rename", key="added", title="Added")
    bench.result(other, "write", text="second\n")
    bench.rpc("reset_session", session_id=first, version=3)
    bench.result(first, "rename", key="c2", title="After the reset")
    return first, one, other


@serving.in_both
def test_views_and_diffs_of_pieces_equal_those_of_the_whole():
    with archive(lazy_min_bytes=1) as pieces, archive() as reference:
        histories = [history(bench) for bench in (pieces, reference)]
        for lazy, plain in zip(*histories, strict=True):
            assert any(":objects:" in part for part in pieces.store.get(lazy)[1].parts)
            for pointer in POINTERS:
                views = [
                    bench.rpc("get_environment", session_id=session_id, pointer=pointer)
                    for bench, session_id in ((pieces, lazy), (reference, plain))
                ]
                assert views[0] == views[1], pointer
            for pointer in MISSING:
                errors = [
                    refused(-32602, bench.rpc, "get_environment", session_id=session_id, pointer=pointer).message
                    for bench, session_id in ((pieces, lazy), (reference, plain))
                ]
                assert errors[0] == errors[1], pointer
        for from_version in range(3):
            for to_version in range(3):
                patches = [
                    bench.rpc("diff_environment", session_id=ids[from_version], to_session_id=ids[to_version], **start)
                    for start in ({}, {"from_version": 0})
                    for bench, ids in zip((pieces, reference), histories, strict=True)
                ]
                assert patches[0] == patches[1]
                assert patches[2] == patches[3]
