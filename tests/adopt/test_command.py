"""What is understood of a line of a crontab."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from django_singlejob.adopt.command import understood
from django_singlejob.adopt.found import Left

DUMP = "pg_dump shop | gzip > /backup/shop.gz"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # a management command, and what may stand around it
        ("python manage.py clearsessions", {"management": ("clearsessions",)}),
        (
            "/srv/shop/.venv/bin/python3.12 -u /srv/shop/manage.py mail --limit 5",
            {"management": ("mail", "--limit", "5")},
        ),
        ("./manage.py mail 'two words'", {"management": ("mail", "two words")}),
        ("django-admin mail", {"management": ("mail",)}),
        ("python -Wd -m django mail", {"management": ("mail",)}),
        ("uv run manage.py mail", {"management": ("mail",)}),
        ("poetry run python manage.py mail", {"management": ("mail",)}),
        ("cd /srv/shop && python manage.py mail", {"management": ("mail",), "directory": "/srv/shop"}),
        ("cd /srv/shop; python manage.py mail", {"management": ("mail",), "directory": "/srv/shop"}),
        ("cd /srv && cd shop && python manage.py mail", {"management": ("mail",), "directory": "/srv/shop"}),
        (". bin/activate && python manage.py mail", {"management": ("mail",), "sources": (". bin/activate",)}),
        (". /etc/shop.env && ./a.sh", {"words": ("./a.sh",), "sources": (". /etc/shop.env",)}),
        ("A=1 ./a.sh", {"words": ("env", "A=1", "./a.sh")}),
        ("bash -lc 'cd /srv/shop && python manage.py mail'", {"management": ("mail",), "directory": "/srv/shop"}),
        ("exec nohup python manage.py mail", {"management": ("mail",)}),
        # where its output goes
        ("python manage.py mail > /dev/null 2>&1", {"management": ("mail",)}),
        ("python manage.py mail >> /var/log/mail.log 2>&1", {"management": ("mail",)}),
        ("python manage.py mail > mails.txt", {"line": "python manage.py mail > mails.txt"}),
        ("./a.sh &> /dev/null < /dev/null", {"words": ("./a.sh",)}),
        ("./a.sh 2>> /var/log/a.log", {"line": "./a.sh 2>> /var/log/a.log"}),
        # a lock, a limit, a pause by chance
        ("flock -n /tmp/a.lock ./a.sh", {"words": ("./a.sh",), "lock": "/tmp/a.lock", "wait": 0.0}),
        ("flock -xn /tmp/a.lock ./a.sh", {"words": ("./a.sh",), "lock": "/tmp/a.lock", "wait": 0.0}),
        ("flock -w 10 /tmp/a.lock -c './a.sh'", {"words": ("./a.sh",), "lock": "/tmp/a.lock", "wait": 10.0}),
        ("flock --timeout=10 /tmp/a.lock ./a.sh", {"words": ("./a.sh",), "lock": "/tmp/a.lock", "wait": 10.0}),
        ("flock /tmp/a.lock ./a.sh", {"words": ("./a.sh",), "lock": "/tmp/a.lock", "wait": inf}),
        ("timeout -k 5 1.5h ./a.sh", {"words": ("./a.sh",), "max_runtime": 5400.0}),
        ("sleep $((RANDOM % 300)) && ./a.sh", {"words": ("./a.sh",), "spread": 300}),
        ("sleep $[RANDOM]; ./a.sh", {"line": "sleep $[RANDOM]; ./a.sh"}),
        # one server, and mails
        ('[ "$(hostname)" = "web1" ] && ./a.sh', {"words": ("./a.sh",), "host": "web1"}),
        ("test `hostname -s` = web1 && ./a.sh", {"words": ("./a.sh",), "host": "web1"}),
        ("[ $HOSTNAME == web1 ] && ./a.sh", {"words": ("./a.sh",), "host": "web1"}),
        ("./a.sh || mail -s 'a failed' ops@shop.example", {"words": ("./a.sh",), "notify": "ops@shop.example"}),
        ("./a.sh || echo failed", {"line": "./a.sh || echo failed"}),
        # what a shell has to run
        (DUMP, {"line": DUMP}),
        ("cd /srv && " + DUMP, {"line": DUMP, "directory": "/srv"}),
        ("A=1 ./a.sh $HOME", {"line": "A=1 ./a.sh $HOME"}),
        ("./a.sh; ./b.sh", {"line": "./a.sh; ./b.sh"}),
        ("./dump > /b/x.sql # each night", {"line": "./dump > /b/x.sql"}),
        ("[ $(hostname) = $P ] && ./a.sh", {"line": "[ $(hostname) = $P ] && ./a.sh"}),
        ("[ $(hostname) = web1 ] && ./a.sh; ./b.sh", {"line": "[ $(hostname) = web1 ] && ./a.sh; ./b.sh"}),
        ("time -o F ./a.sh", {"words": ("time", "-o", "F", "./a.sh")}),
        ("bash -ec './a.sh; ./b.sh'", {"words": ("bash", "-ec", "./a.sh; ./b.sh")}),
        ("bash -c 'cd /srv && ./a.sh' > out.txt", {"line": "bash -c 'cd /srv && ./a.sh' > out.txt"}),
        (". ./env && cd /srv && ./a.sh $X", {"line": "cd /srv && ./a.sh $X", "sources": (". ./env",)}),
        ("rm /tmp/*.pdf", {"line": "rm /tmp/*.pdf"}),
        ("(cd /srv && ./a.sh)", {"line": "(cd /srv && ./a.sh)"}),
        ("nice -n 10 ./a.sh", {"words": ("nice", "-n", "10", "./a.sh")}),
        ("docker exec web python manage.py mail", {"words": ("docker", "exec", "web", "python", "manage.py", "mail")}),
        ("manage.py mail --settings=other", {"words": ("manage.py", "mail", "--settings=other")}),
        ("python report.py", {"words": ("python", "report.py")}),
    ],
)
def test_it_is_understood(line: str, expected: dict[str, Any]) -> None:
    found = understood(line)
    telling = {name: value for name, value in vars(found).items() if name != "notes" and (value or name in expected)}
    assert telling == expected


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("/usr/sbin/logrotate /etc/logrotate.conf", "each server needs it"),
        ("cd / && run-parts /etc/cron.hourly", "each server needs it"),
        ("sudo docker image prune -f", "each server needs it"),
        ("flock -s /tmp/a.lock ./a.sh", "shared"),
        ("flock -n 9", "a descriptor of the shell"),
        ("timeout $LIMIT ./a.sh", "the time of its timeout"),
        ("flock -w $WAIT /tmp/a.lock ./a.sh", "the time of its flock"),
        ("flock -w", "the time of its flock"),
        ("./a.sh &", "in the background"),
        ("python manage.py singleton_worker --once", "the line for all jobs already"),
        ("python manage.py run_singleton report", "give that job this schedule"),
        ("./a.sh 'one", "a quote or a parenthesis has no end"),
        ("flock -n /tmp/a.lock", "a descriptor of the shell"),
        ("chronic", "it has no command"),
    ],
)
def test_it_stays(line: str, why: str) -> None:
    with pytest.raises(Left, match=why):
        understood(line)


def test_what_follows_a_percent_is_read() -> None:
    found = understood("mysql shop", ("delete from carts;", "it's done"))
    assert found.line == "printf '%s\\n' 'delete from carts;' 'it'\"'\"'s done' | mysql shop"


def test_all_that_reads_it_gets_it() -> None:
    assert understood("sleep 5; mysql shop", ("x",)).line == "printf '%s\\n' x | { sleep 5; mysql shop; }"


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("chronic ./a.sh", "chronic"),
        ("run-one ./a.sh", "run-one"),
        ("./a.sh > /dev/null", "> /dev/null"),
        ("python manage.py mail >> /var/log/mail.log", ">> /var/log/mail.log"),
        (". /etc/shop.env && python manage.py mail", "/etc/shop.env"),
        ("./a.sh || mail ops@shop.example", "notify"),
    ],
)
def test_it_says_what_differs(line: str, note: str) -> None:
    (said,) = understood(line).notes
    assert note in said
