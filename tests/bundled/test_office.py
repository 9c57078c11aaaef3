"""The bundled office: what its agents can and can't do to its database and files."""

import contextlib
import hashlib
import sys
import tracemalloc

import pytest
import serving

from toolpack_server.base.errors import SettingsError
from toolpack_server.features.executors import sandbox
from toolpack_server.packs.loading import load_catalog
from toolpacks import _office_data
from toolpacks._office_shell import Shell, ShellError

CATALOG = load_catalog((), ("office",))


@pytest.fixture(scope="module", params=["thread", "sandbox"])
def office(request):
    settings = {}
    if request.param == "sandbox":
        try:
            if sys.platform != "linux":
                pytest.skip("executors need Linux")
            sandbox.check_sandbox()
        except SettingsError as error:
            pytest.skip(str(error))
        settings = {"isolation": "process", "sandbox": ("files", "network"), "packs": ("office",), "pack_dir": ()}
    with serving.Bench(CATALOG, **settings) as bench:
        session = bench.create("office")

        def call(function, /, **kwargs):
            envelope = bench.call(session, function, **kwargs)
            return envelope["error"] or envelope["result"]

        yield call


def test_sql_reads_everything_and_changes_nothing(office):
    assert office("sql", query="SELECT name, stock FROM product WHERE id = 1") == {
        "columns": ["name", "stock"],
        "rows": [["Compact Pump 100", 59]],
        "more": False,
    }
    many = office("sql", query="SELECT * FROM order_line")
    assert (len(many["rows"]), many["more"]) == (200, True)
    for query in (
        "UPDATE product SET stock = 0",
        "DROP TABLE product",
        "ATTACH '/etc/passwd' AS other",
        "VACUUM INTO '/tmp/x'",
        "SELECT load_extension('x')",
        "SELECT 1; SELECT 2",
    ):
        assert isinstance(office("sql", query=query), str), query
    assert office("sql", query="SELECT count(*) FROM product WHERE stock = 0")["rows"][0][0] < 10
    long = "ValueError: The rows have more than 1000000 characters: ask for fewer or shorter ones."
    assert office("sql", query="SELECT hex(zeroblob(400000)) FROM order_line") == long


def test_shell_works_on_the_papers_and_reaches_no_other_files(office):
    assert office("shell", command="ls") == "bills/\ncontracts/\npolicies/\nprices/\nreceipts/\nreports/\n"
    assert office("shell", command="grep -rl 'Aurora Pharma' contracts") == "contracts/241.md\n"
    assert office("shell", command="cat prices/*.csv | head -n 2 | cut -d ';' -f 1 > x; wc -l x; cat x; rm x") == (
        "2\nsku\nPU-1000\n"
    )
    for command in ("cat ../../../etc/passwd", "ls ../..", "cp policies/travel.md ../x", "echo x > ../x"):
        assert "leads out of the papers" in office("shell", command=command)
    assert "/etc/passwd: no such file or folder" in office("shell", command="cat /etc/passwd")
    assert "there is no command 'python'" in office("shell", command="python -c 1")


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("echo b > l; echo a >> l; sort l", "a\nb\n"),
        ("echo 10 > l; echo 9 >> l; sort -n l | tail -n 1", "10\n"),
        ("find . -name '*.txt' -type f", "d/one.txt\n"),
        ("cat d/*.txt | grep -n w", "2:two words\n"),
        ("cat d/one.txt | grep -v w | wc -l", "1\n"),
        ("mkdir -p e/f; cp -r d e/f; mv e/f/d e/g; ls -a e", "f/\ng/\n"),
        ("cat d/one.txt | cut -d ' ' -f 2", "\nwords\n"),
        ("echo a > l; echo a >> l; cat l | uniq -c", "      2 a\n"),
        ("tail -n +2 d/one.txt", "two words\n"),
        ("echo 'a;b' \"c|d\" e\\ f'g' > l; cut -d ';' -f 2 l", "b c|d e fg\n"),
    ],
)
def test_commands_behave_as_in_a_real_shell(tmp_path, command, printed):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "one.txt").write_text("one\ntwo words\n")
    assert Shell(tmp_path).run(command) == printed


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("", "the line has no command"),
        ("ls |", "a command is missing before or after |"),
        ("ls && rm x", "'&&' isn't supported: the operators are | > >> and ;"),
        ("cat 'x", "a quotation mark is never closed"),
        ("ls -z", "the option -z isn't supported"),
        ("head -n x", "'x' isn't a number"),
        ("cat x", "x: no such file or folder"),
        ("rm -r /", "the folder of all papers can't be removed"),
        ("rm .", "the folder of all papers can't be removed"),
        ("mv x y", "x: no such file or folder"),
        ("ls > a b", "> must be followed by one path, at the end of the command"),
        ("cat link/passwd", "'link/passwd' leads out of the papers"),
        ("echo > no/folder", "no/folder: No such file or directory"),
    ],
)
def test_unsupported_shell_commands_are_errors(tmp_path, command, sentence):
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(ShellError) as raised:
        Shell(tmp_path).run(command)
    assert str(raised.value) == sentence


def test_failed_function_leaves_books_and_papers_unchanged(office):
    assert office("place_order", customer_id=241, lines=[{"sku": "CE-1168", "quantity": 3}]) == (
        "ValueError: There are only 1 of CE-1168 in stock."
    )
    assert office("ship_order", order_id=100_001) == (
        "ValueError: Order 100001 is shipped: only open orders can be shipped."
    )
    assert office("record_payment", invoice_id=1, amount="1", reference="") == "ValueError: There is no invoice 1."
    message = "ValueError: There is no bill X: query the table bill with `sql` to see the numbers."
    assert office("pay_bill", number="X") == message
    assert office("decide_expense", expense_id=3080, approve=False) == "ValueError: Give a reason for the rejection."
    assert office("sql", query="SELECT count(*), max(id) FROM orders")["rows"] == [[9000, 109_000]]


def test_company_data_is_the_same_on_every_machine():
    lists = _office_data.customers(), _office_data.products(), _office_data.bills(), _office_data.expenses()
    assert hashlib.sha256(repr(lists).encode()).hexdigest()[:16] == "c838b259f84e986f"


@pytest.mark.parametrize(
    "command",
    [
        "; ".join(["cat big"] * 100),
        "cat " + "big " * 300,
        "cat " + "* " * 300,
        "cat big big > c; " + "; ".join(["cat c c > d; cat d d > c"] * 20),
        "; ".join(["cat big >> c"] * 100),
        "; ".join(f"cp big c{number}" for number in range(100)),
        "mkdir a; cp big a/0; " + "; ".join(f"cp -r a b{number}; mv b{number} a" for number in range(30)),
        "cut -d , -f " + ",".join(["1"] * 500) + " big",
        "grep -n x " + "big " * 300,
        "grep -rc x " + ". " * 300,
        "ls -l " + ". " * 600,
        "find . " + "| sort" * 100,
        "uniq -c lines | uniq -c | uniq -c",
        "; ".join(f"mkdir -p {number}/" + "a/" * 300 for number in range(4)) + "; find .; grep -r x . . .",
        "cat huge | head -n 1",
        "echo x" + " | cat big" * 50,
    ],
)
def test_shell_line_uses_little_memory(tmp_path, command):
    (tmp_path / "big").write_text("x" * 1_000_000)
    (tmp_path / "lines").write_text("a\nb\n" * 200_000)
    (tmp_path / "huge").write_text("y\n" * 2_000_000)
    tracemalloc.start()
    try:
        with contextlib.suppress(ShellError):
            assert len(Shell(tmp_path).run(command)) < 21_000
        assert tracemalloc.get_traced_memory()[1] < 200 * 2**20
    finally:
        tracemalloc.stop()
    size = sum(path.lstat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert size < 6 * 2**20 + 2**24
