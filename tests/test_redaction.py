"""What ``RECORD_COMMAND="full"`` masks of a command line, and what it leaves. Each secret here is *hunter2*, or looks
like those of a well-known service."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from django_singlejob.redaction import LONGEST, redact
from tests.waiting import eventually, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable

AWS, JWT = "AKIAIOSFODNN7EXAMPLE", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJodW50ZXIyIn0.c2lnbmF0dXJl"
SECRETS = ("hunter2", AWS, JWT, "wJalrXUtnFEMI", "ghp_", "xoxb-", "sk_live", "glpat-")

LINES = r"""
mysqldump --password hunter2 shop
mysqldump --password=hunter2 shop
mysqldump --password='hunter2 hunter2' shop
mysqldump --password "hunter2 hunter2" shop
mysqldump --password=hunter2\ hunter2 shop
mysqldump --pass=hunter2 shop
mysqldump -phunter2 shop
mysqldump -p hunter2 shop
mysqldump -p'hunter2 hunter2' shop
/usr/bin/mysql -ushop -phunter2 shop
mysql --user=shop --pw=hunter2
backup --pw hunter2
backup --pwd=hunter2
backup -pw hunter2
backup -phunter2
sshpass -phunter2 ssh shop@web-1
sshpass -p hunter2 scp a shop@web-1:/srv
curl -u shop:hunter2 https://example.com
curl -ushop:hunter2 https://example.com
curl --user shop:hunter2 https://example.com
curl --user=shop:hunter2 https://example.com
curl --proxy-user shop:hunter2 https://example.com
curl -H 'Authorization: Bearer hunter2' https://example.com
curl -H 'Authorization: Basic aHVudGVyMg==hunter2' https://example.com
curl -H "Authorization: Digest username=shop, response=hunter2" https://example.com
curl --header "X-Api-Key: hunter2" https://example.com
curl --header=X-Auth-Token:hunter2 https://example.com
curl -H 'Cookie: theme=dark; sessionid=hunter2' https://example.com
curl -H X-Token:\ hunter2 https://example.com
curl https://example.com/?token=hunter2
curl 'https://example.com/hook?a=1&access_token=hunter2&b=2'
curl 'https://example.com/?X-Amz-Signature=hunter2'
curl 'https://example.com/?sig=hunter2&sv=2026'
curl 'https://example.com/?api_key=hunter2#top'
curl https://shop:hunter2@example.com/path
curl https://hunter2@github.com/shop/shop.git
curl -d 'user=shop&password=hunter2' https://example.com
curl -d password=hunter2 https://example.com
curl -F token=hunter2 https://example.com
curl -b session=hunter2 https://example.com
curl -d '{"password": "hunter2"}' https://example.com
curl -d '{"user":"shop","password":"hunter2","n":1}' https://example.com
curl -d '{"a": {"clientSecret": "hunter2 \" hunter2"}}' https://example.com
curl -d "{\"password\": \"hunter2\"}" https://example.com
curl -d '{"tokens": ["hunter2", "hunter2"]}' https://example.com
curl -d password%3Dhunter2 https://example.com
curl -d %7B%22password%22%3A%22hunter2%22%7D https://example.com
curl 'https://example.com/?next=%2Fx%3Ftoken%3Dhunter2'
git clone https://oauth2:hunter2@gitlab.com/shop/shop.git
git -c http.extraheader="AUTHORIZATION: bearer hunter2" fetch
PGPASSWORD=hunter2 psql shop
MYSQL_PWD=hunter2 mysql shop
PASSWORD='hunter2 hunter2' backup
env DB_PASS=hunter2 SECRET_KEY=hunter2 backup
export TOKEN="hunter2"; backup
cd /srv;PASSWORD=hunter2 backup
(PASSWORD=hunter2 backup)
psql postgresql://shop:hunter2@db/shop
psql 'host=db user=shop password=hunter2 dbname=shop'
psql -c "ALTER USER shop WITH PASSWORD = 'hunter2'"
mysql -e "CREATE USER shop IDENTIFIED BY 'hunter2'"
psql -c "ALTER ROLE shop PASSWORD 'hunter2 hunter2'"
psql -c "create role shop with encrypted password 'it''s hunter2'"
mysqladmin password hunter2
http POST example.com Authorization:"Bearer hunter2"
redis-cli -a hunter2 flushall
redis-cli -u redis://:hunter2@db:6379/0 ping
redis-cli AUTH hunter2
ldapsearch -D cn=shop -w hunter2 -b dc=shop
smbclient //files/shop -U shop%hunter2
lftp -u shop,hunter2 sftp://files
sqlcmd -S db -U shop -P hunter2
unzip -P hunter2 backup.zip
7z a -phunter2 backup.7z /srv
openssl enc -aes-256-cbc -k hunter2 -in a
openssl rsa -passin pass:hunter2 -in key.pem
gpg --batch --passphrase hunter2 -d backup.gpg
docker login -u shop -p hunter2 registry
docker run -e POSTGRES_PASSWORD=hunter2 postgres
docker run --env=POSTGRES_PASSWORD=hunter2 postgres
helm upgrade shop --set auth.password=hunter2,replicas=2
helm upgrade shop --set=replicas=2,auth.password=hunter2
kubectl --token=hunter2 get pods
java -Dspring.datasource.password=hunter2 -jar shop.jar
ansible-playbook site.yml -e 'ansible_become_pass=hunter2'
vault write secret/shop token=hunter2
npm config set //registry.npmjs.org/:_authToken hunter2
wget --http-password=hunter2 https://example.com
http -a shop:hunter2 https://example.com
http POST https://example.com X-API-Key:hunter2
aws configure set aws_secret_access_key wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY
aws s3 ls --access-key AKIAIOSFODNN7EXAMPLE
backup AKIAIOSFODNN7EXAMPLE
backup eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJodW50ZXIyIn0.c2lnbmF0dXJl
backup --to=sftp://shop:hunter2@files:22/x rest
rsync -a /srv shop:hunter2@files::module
backup ghp_16C7e42F292c6912E7710c838347Ae178B4a
backup xoxb-123456789012-abcdefghijkl
backup glpat-hunter2hunter2hunter2
manage.py run_singleton sync --args '{"password": "hunter2"}'
manage.py run_singleton sync --args '["a", {"api-key": "hunter2"}]'
sh -c "mysqldump -phunter2 shop | gzip > /srv/shop.sql.gz"
bash -c 'curl -u "shop:hunter2" https://example.com && echo done'
ssh web-1 "PGPASSWORD='hunter2' pg_dump shop"
backup --secret hunter2 --verbose
backup --client_secret=hunter2
backup password = hunter2
backup -u TOKEN=hunter2
docker run -e 'DB_PASSWORD=hunter2 hunter2' postgres
mysqldump "--password=hunter2 hunter2" shop
backup postgres://shop:hunter2/hunter2@db/shop
""".strip().splitlines()

ORDINARY = r"""
rsync -a --delete /srv/shop backup:/srv
pg_dump --port 5432 --file=shop.sql shop
pg_dump -h db -p 5432 -U shop -Fc shop
psql -h db -U shop -c 'SELECT count(*) FROM sales'
mkdir -p /srv/shop/media
cp -p a b
tar -cpf x y
tar -czf /srv/backup-2026-11-23.tar.gz /srv/shop
ssh -p 2222 shop@web-1 uptime
scp -P 2222 a shop@web-1:/srv
git clone git@github.com:shop/shop.git
git commit --author=Ada -m monkey
git checkout 9fceb02d0ae598e95dc970b74767f19372d61af8
docker run -p 8080:80 -u 1000:1000 -v /srv:/srv nginx
docker run --user www-data:www-data alpine@sha256:0123456789abcdef
docker login --password-stdin registry.example.com
find /srv -name *.tmp -print -delete
sort --key=2 -t , sales.csv
curl -fsS https://example.com/ping/3f2b8c1e-0000-4000-8000-000000000001
curl 'https://example.com/search?q=shop&page=2&sort=name'
curl -H 'Content-Type: application/json' -d '{"user": "shop", "count": 2}' https://example.com
python manage.py clearsessions --settings=shop.settings
manage.py run_singleton nightly --args '{"day": "2026-11-23", "keyboard": "de"}'
nice -n 10 ionice -c 3 backup --verbose --jobs=4
env TZ=UTC LANG=C.UTF-8 PATH=/usr/bin:/bin backup
sh -c 'date; echo 12:30 >> /var/log/shop.log 2>&1'
ffmpeg -i a.mp4 -pix_fmt yuv420p -preset fast b.mp4
celery -A shop worker -l info --max-tasks-per-child=100
certbot renew --quiet --deploy-hook 'systemctl reload nginx'
llm --max-tokens 100 --public-key id.pub --no-password
find . -perm 644 -path ./x -prune
mysql --user=shop --host=db -u shop shop
curl 'https://example.com:8080/@shop/feed?mail=ada@example.com'
flock -n /tmp/x.lock /srv/backup.sh --compass --bypass
""".strip().splitlines()


def is_clean(text: str) -> bool:
    return not any(secret in text for secret in SECRETS)


@pytest.mark.parametrize("line", LINES)
def test_a_secret_is_masked(line: str) -> None:
    shown = redact(shlex.split(line))
    assert "***" in shown
    assert is_clean(shown), shown


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("shell", ["sh -c", "ssh web-1"])
def test_a_secret_in_a_shells_script_is_masked(line: str, shell: str) -> None:
    shown = redact([*shell.split(), line, "done"])
    assert is_clean(shown), shown
    assert shown.startswith(shell)
    assert shown.endswith(" done")


@pytest.mark.parametrize("line", ORDINARY)
def test_what_is_not_a_secret_is_shown(line: str) -> None:
    words = shlex.split(line)
    assert redact(words) == " ".join(words)
    assert redact(["sh", "-c", line]) == f"sh -c {line}"


def test_there_are_as_many_as_were_tried() -> None:
    assert len(LINES) >= 65
    assert len(ORDINARY) >= 25


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("--password=hunter2 rest", "--password=*** rest"),
        ("--password-file hunter2 rest", "--password-file *** rest"),
        ("TOKEN=hunter2 backup", "TOKEN=*** backup"),
        ("env AWS_SECRET_ACCESS_KEY=hunter2/+= backup", "env AWS_SECRET_ACCESS_KEY=*** backup"),
        ("curl -u shop:hunter2 https://a.b", "curl -u shop:*** https://a.b"),
        ("curl https://a.b/?x=1&token=hunter2&y=2", "curl https://a.b/?x=1&token=***&y=2"),
        ("redis://:hunter2@db:6379/0", "redis://***@db:6379/0"),
    ],
)
def test_the_rest_of_a_command_line_stays_readable(line: str, shown: str) -> None:
    assert redact(line.split(" ")) == shown


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("Authorization: Bearer hunter2", "Authorization: Bearer ***"),
        ("X-Api-Key: hunter2", "X-Api-Key: ***"),
        ("curl -H 'X-Api-Key: hunter2' example.com", "curl -H 'X-Api-Key: ***' example.com"),
        ("curl -H 'Authorization: Bearer hunter2'; date", "curl -H 'Authorization: Bearer ***'; date"),
        ('{"password": "hunter2", "user": "shop"}', '{"password": ***, "user": "shop"}'),
    ],
)
def test_so_does_the_rest_of_an_argument(argument: str, shown: str) -> None:
    assert redact([argument]) == shown


# --- whatever it is


@given(st.lists(st.text(st.characters(), max_size=50), max_size=5))
def test_redacting_never_raises(arguments: list[str]) -> None:
    assert isinstance(redact(arguments), str)


@given(st.lists(st.text("-=:'\"\\ {}[]@/%?&;pP\n", max_size=80), max_size=5))
def test_nor_does_it_for_what_looks_like_a_shells_script(arguments: list[str]) -> None:
    assert isinstance(redact(arguments), str)


PIECES = [
    *(
        "-",
        "x",
        "pass",
        "'",
        '"',
        "\\",
        '\\"',
        "//",
        "a:",
        "=",
        "key=",
        "eyJ",
        "eyJaaaaaa.",
        "A1b",
        "%",
        "%25",
        "25",
        "?a=",
    ),
    *("@", "&b", '{"a":', "{'a': {", '{"key":', " ", "a b ", "pass: ", "('", "\"'", "https://a:b@", "-p ", "-u a:b "),
    *("-----BEGIN ", "-----BEGIN PRIVATE KEY-----"),
]


def takes_at_most(times: float, long: Callable[[], object], short: Callable[[], object]) -> bool:
    """Whether one takes no more than this many times as long as the other. Of several tries, the fastest counts."""
    fastest = dict.fromkeys([long, short], float("inf"))

    def seems_so() -> bool:
        for act, so_far in fastest.items():
            fastest[act] = min(so_far, seconds_of(act))
        return fastest[long] <= times * fastest[short]

    return eventually(seems_so)


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("before", ["", "password=", "'", '"', "x ", "%"])
def test_the_time_grows_with_the_length_and_no_faster(piece: str, before: str) -> None:
    """The bound is not needed for it: the patterns never look back far."""

    def some(length: int) -> Callable[[], str]:
        text = (before + piece * length)[:length]
        return lambda: redact([text])

    def whole(length: int) -> Callable[[], str]:
        act = some(length)

        def without_bound() -> str:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("django_singlejob.redaction.LONGEST", 1_000_000)
                return act()

        return without_bound

    # If the time grew with the square of the length, it would be 400 times as long.
    assert takes_at_most(60, whole(20_000), whole(1_000))
    assert takes_at_most(20, some(1_000_000), whole(20_000))


def test_what_is_cut_is_not_cut_in_a_secret() -> None:
    shown = redact(["backup", "x" * (LONGEST - 20), "https://shop:hunter2hunter2@db", "rest"])
    assert shown.endswith("x ***")
    assert is_clean(redact(["x " * (LONGEST // 2 - 10) + "https://shop:hunter2hunter2hunter2@db"]))
