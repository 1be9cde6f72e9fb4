"""Fixtures that several test files share."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests run side by side on few cores: threads that spin for one another would take longer than the
# work. Read by whatever is started from here, before it imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Path]:
    """The socket folder of a PostgreSQL server of our own; the test is skipped without one."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: p.parent.name)
    if not programs:
        pytest.skip("no PostgreSQL in /usr/lib/postgresql: apt-get install postgresql")
    # Not pytest's folder: a socket's path may have 107 characters, and root's folders are closed.
    home = Path(tempfile.mkdtemp(prefix="autotune-pg-", dir="/tmp"))
    user = _server_user(home)
    data, log = home / "data", home / "log"
    command = [programs[-1] / "initdb", "-D", data, "-U", "autotune", "-A", "trust", "--no-sync"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, user=user, cwd=home)
    with log.open("wb") as output:
        server = subprocess.Popen(
            [programs[-1] / "postgres", "-D", data, "-k", home, "-c", "listen_addresses=", "-F"],
            stdout=output,
            stderr=subprocess.STDOUT,
            user=user,
            cwd=home,
        )
    try:
        _wait_until_ready(programs[-1], home, server, log)
        yield home
    finally:
        server.terminate()
        server.wait(timeout=30)
        shutil.rmtree(home, ignore_errors=True)


def _server_user(home: Path) -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    try:
        account = pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("root cannot run PostgreSQL, and there is no account postgres")
    os.chown(home, account.pw_uid, account.pw_gid)
    home.chmod(0o755)
    return "postgres"


def _wait_until_ready(
    programs: Path, home: Path, server: subprocess.Popen[bytes], log: Path
) -> None:
    deadline = time.monotonic() + 60
    while subprocess.run([programs / "pg_isready", "-q", "-h", home]).returncode:
        if server.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"PostgreSQL did not start: {log.read_text()[-500:]}")
        time.sleep(0.05)


@pytest.fixture
def postgres_url(postgres_server: Path) -> str:
    """The URL of an empty schema of this test's own."""
    import psycopg

    name = f"t{uuid.uuid4().hex}"
    where = f"host={postgres_server} user=autotune dbname=postgres"
    with psycopg.connect(where, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")  # much quicker than a database
    options = f"host={postgres_server}&options=-csearch_path%3D{name}"
    return f"postgresql://autotune@/postgres?{options}"


@pytest.fixture(
    params=[
        pytest.param("sqlite", id="sqlite"),
        pytest.param("postgres", id="postgres", marks=pytest.mark.postgres),
    ]
)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store of each kind that is supported; the file's folder has an awkward name."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    folder = tmp_path / "my models (v2) ü 100%?#"
    return f"sqlite:///{folder / 'autotune.db'}"
