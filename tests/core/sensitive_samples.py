"""Samples that each kind of pattern must find, and samples it must ignore. All of them are made up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from routewright.wire import PatternKind

BODY = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V2w3X4y5Z6"
"""What a random key looks like, without being one."""
LINE = BODY[:32] * 2


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


EMAILS = [
    *"""
anna@example.com anna.berg@example.com anna+news@example.com anna_berg@example.org anna-berg@example.net
ANNA@EXAMPLE.COM a@b.io anna@mail.example.com anna@mail.intern.example.co.uk 1234@example.com anna.b@example.museum
anna@example-shop.de anna@xn--mller-kva.de anna@müller.de jörg@example.de anna@пример.рф иван@пример.рф
άννα@παράδειγμα.ελ o'brien@example.ie anna~x@example.com anna%40example.com anna@sub.domain.example.photography
first.last@iana.example x@example.travel anna@1and1.com a.b.c.d.e@example.com anna@a-b-c.example.com
user+tag+more@example.com anna--berg@example.com _anna@example.com noreply@news.example.ch info@example.info
sales@example.biz me@example.me anna@example.ai anna@example.app support@example.dev root@mail.example.eu
q@example.id anna\\u0040example.com
""".split(),
    "anna＠example.com",
    "anna@example。com",
    "anna\u200b@example.com",
    "an\u00adna@example.com",
]
NO_EMAILS = lines("""
anna at example dot com
anna@localhost
@example.com
icon@2x.png
react@18.2.0
python@3.12
@babel/core@7.24.0
5 apples @ 2.50
x = a @ b
commit@{1}
user@host
git@server:repo
a@b.c
foo@bar@
@@ -1,2 +3,4 @@
bundle@latest.js
anna(at)example.com
""")

_NUMBERS = """
4111111111111111 4012888888881881 4222222222222 4242424242424242 4000056655665556 5555555555554444 5105105105105100
5200828282828210 2223003122003222 2221000000000009 378282246310005 371449635398431 378734493671000 6011111111111117
6011000990139424 6011981111111113 3056930009020004 36227206271667 30569309025904 38520000023237 3530111333300000
3566002020360505 6200000000000005 6200000000000047 6205500000000000004 2200000000000004
""".split()


def _fours(digits: str) -> str:
    return " ".join(digits[at : at + 4] for at in range(0, len(digits), 4))


CARDS = [
    *_NUMBERS,
    *map(_fours, _NUMBERS[:8]),
    _fours(_NUMBERS[0]).replace(" ", "-"),
    _fours(_NUMBERS[5]).replace(" ", "\u00a0"),
    "3782 822463 10005",
    "3714-496353-98431",
    "４１１１１１１１１１１１１１１１",
    "٤١١١١١١١١١١١١١١١",
    "4111\u200b1111\u200b1111\u200b1111",
    "4111 \u200b1111 1111 1111",
    _fours(_NUMBERS[3]).replace(" ", "\u2011"),
]
NO_CARDS = lines("""
4111111111111112
378282246310006
1234567890123456
9999999999999995
1763769600000
2025-11-21 22:36:46
2025112122364601
978-3-16-148410-0
a4111111111111111
3.4111111111111111
4111111111111111.5
d41d8cd98f00b204e9800998ecf8427e
550e8400-e29b-41d4-a716-446655440000
4111-1111-1111
41111111111111111111
411111111111111111111111
1.000.000.000.000.000
1000000000000008
+49 30 12345678901234567890
ISBN 9783161484100
order 1700000000000001
""")

_ACCOUNTS = """
AD1200012030200359100100 AE070331234567890123456 AL47212110090000000235698741 AT611904300234573201
AZ21NABZ00000000137010001944 BA391290079401028494 BE68539007547034 BG80BNBG96611020345678 BH67BMAG00001299123456
BR9700360305000010009795493P1 BY13NBRB3600900000002Z00AB00 CH9300762011623852957 CR05015202001026284066
CY17002001280000001200527600 CZ6508000000192000145399 DE89370400440532013000 DK5000400440116243
DO28BAGR00000001212453611324 EE382200221020145685 ES9121000418450200051332 FI2112345600000785
FR1420041010050500013M02606 GB29NWBK60161331926819 GE29NB0000000101904917 GI75NWBK000000007099453
GR1601101250000000012300695 HR1210010051863000160 HU42117730161111101800000000 IE29AIBK93115212345678
IL620108000000099999999 IS140159260076545510730339 IT60X0542811101000000123456 JO94CBJO0010000000000131000302
KW81CBKU0000000000001234560101 LI21088100002324013AA LT121000011101001000 LU280019400644750000 LV80BANK0000435195001
MT84MALT011000012345MTLCAST001S NL91ABNA0417164300 NO9386011117947 PL61109010140000071219812874
PT50000201231234567890154 SE4550000000058398257466 SI56263300012039086
""".split()
IBANS = [
    *_ACCOUNTS,
    *map(_fours, _ACCOUNTS[:10]),
    "de89370400440532013000",
    "DE89-3704-0044-0532-0130-00",
    "DE89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000",
]
NO_IBANS = [
    *(account[:-1] + ("1" if account[-1] != "1" else "2") for account in _ACCOUNTS[:25]),
    *(account + "0" for account in _ACCOUNTS[:5]),
    *(account[:-1] for account in _ACCOUNTS[:5]),
    *lines("""
XX89370400440532013000
US64SVBKUS6S3300958879
DE89
IT was 2024 when all of it began
DE 89 3704 0044 0532 0130 00
XDE89370400440532013000
GB2024ANNUALREPORTFINAL
"""),
]

PHONES = [
    *lines("""
+49 30 123456
+49 (0)30 123456-7
+4930123456
+1 415 555 2671
+1 (415) 555-2671
+1.415.555.2671
+44 20 7946 0958
+33 6 12 34 56 78
+34 612 34 56 78
+41 44 668 18 00
+48 22 123 45 67
+81 3-1234-5678
+86 138 0013 8000
+55 11 91234-5678
+972 3-123-4567
0049 30 123456
(415) 555-2671
415-555-2671
1-415-555-2671
030 12345678
(030) 12345678
0170 1234567
01701234567
020 7946 0958
06 12 34 56 78
03-1234-5678
"""),
    "＋49 30 123456",
    "+49\u00a030\u00a0123456",
    "+49 170\u200b1234567",
]
NO_PHONES = lines("""
2025-11-21
21.11.2025
01.02.2024 10:30
2025-11-21 22:36:46
255.255.255.255
12345678
1234567890
4155552671
1,234,567.89
$1,000,000
0.123456789
v1.2.3
+1.5
2+12345
0xdeadbeef
1 2 3 4 5 6 7 8 9 10
0-306-40615-2
123-45-6789
100-200-300
00:11:22:33:44:55
0000000000
§ 823 BGB
550e8400-e29b-41d4-a716-446655440000
""")


def _joined(prefixes: str, body: str) -> Iterator[str]:
    return (prefix + body for prefix in prefixes.split())


def _frame(label: str) -> str:
    return f"-----BEGIN {label}-----\n{LINE}\n{LINE}\nabc=\n-----END {label}-----"


KEYS = [
    *_joined("sk- sk-proj- sk-svcacct- sk-admin- sk-ant-api03- sk-ant-admin01- sk-or-v1- sk-lf-", BODY),
    *_joined("sk-proj- sk-ant-api03-", f"{BODY[:30]}-{BODY[:20]}_{BODY}AA"),
    *_joined("sk_live_ sk_test_ rk_live_ rk_test_", BODY[:24]),
    *_joined("sk_live_ sk_test_", BODY[:32].upper()),
    *_joined("whsec_", BODY[:32]),
    "whsec_" + BODY[:30] + "+/=",
    "AIza" + BODY[:35],
    "ya29." + BODY,
    "GOCSPX-" + BODY[:28],
    "AKIA" + BODY[:16].upper(),
    "ASIA" + BODY[4:20].upper(),
    *_joined("ghp_ gho_ ghu_ ghs_ ghr_", BODY[:36]),
    "github_pat_" + BODY[:22] + "_" + BODY,
    "glpat-" + BODY[:20],
    *_joined("xoxb- xoxp- xoxa- xoxs- xoxe- xapp-", f"{'1234567890' * 2}-{BODY[:24]}"),
    *_joined("hf_ gsk_ r8_ npm_ pplx-", BODY[:40]),
    "xai-" + BODY,
    f"SG.{BODY[:22]}.{BODY[:43]}",
    *map(_frame, ("PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY", "ENCRYPTED PRIVATE KEY")),
    _frame("DSA PRIVATE KEY").replace("\n", "\\n"),
    _frame("RSA PRIVATE KEY").replace("-----\n", "-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B\n\n", 1),
    f"-----BEGIN PRIVATE KEY-----\n{LINE}\n{LINE}",
]
NO_KEYS = [
    *lines("""
sk-
sk-short
sk-loading-spinner-container-wrapper
sk-fading-circle-and-some-more-words
sk-2-column-layout-with-sidebar
ask-me-anything-about-the-weather-in-may
risk-assessment-of-the-whole-programme
task-1234567890-of-the-second-quarter
desk-lamp-model-a1b2c3d4e5f6g7h8i9j0
sk_live_
sk_live_short
sk_prod_a1b2c3d4e5f6g7h8
pk_live_a1B2c3D4e5F6g7H8i9J0k1L2
pk_test_a1B2c3D4e5F6g7H8i9J0k1L2
whsec_
whsec_short
AIza
AIzaSyShort
AKIA
AKIASHORT
AKIAIOSFODNN7EXAMPLEMORE
akiaiosfodnn7example
ghp_
ghp_short
github_pat_
github_patterns_of_use
glpat-short
xoxb-
xoxb-123
xoxq-1234567890-1234567890
hf_hub_download
npm_config_registry
gsk_
hf_short
SG.abc.def
ya29.short
GOCSPX-short
-----BEGIN PRIVATE KEY-----
-----BEGIN PRIVATE KEY----- is how it begins
"""),
    _frame("PUBLIC KEY"),
    _frame("RSA PUBLIC KEY"),
    _frame("CERTIFICATE"),
    _frame("CERTIFICATE REQUEST"),
    BODY,
    "x" + "sk-proj-" + BODY,
    "1AKIA" + BODY[:16].upper(),
]

SAMPLES: dict[PatternKind, tuple[Iterable[str], Iterable[str]]] = {
    "email": (EMAILS, NO_EMAILS),
    "phone": (PHONES, NO_PHONES),
    "card": (CARDS, NO_CARDS),
    "iban": (IBANS, NO_IBANS),
    "api_key": (KEYS, NO_KEYS),
}
