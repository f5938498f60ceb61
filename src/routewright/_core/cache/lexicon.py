"""Words that the guards know: numbers, units, dates, negations, quantities and opposites. Tables, and one rule."""

from __future__ import annotations

from functools import lru_cache

NEGATIONS = frozenset("not no never none nothing nobody nowhere neither nor without unable".split())
NEGATED = frozenset(
    "cannot cant dont doesnt didnt wont isnt arent wasnt werent couldnt wouldnt shouldnt havent hasnt".split()
)
"""With the negation in them, as many write them."""
CLAUSE_WORDS = frozenset("if when because although while since".split())
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth".split()
NUMBERS: dict[str, float] = {
    **{word: float(value) for value, word in enumerate(_SMALL)},
    **{word: 20.0 + 10 * index for index, word in enumerate(_TENS)},
    "dozen": 12.0, "hundred": 100.0, "thousand": 1e3, "million": 1e6, "billion": 1e9, "half": 0.5, "quarter": 0.25,
}  # fmt: skip
SCALES = frozenset({"hundred", "thousand", "million", "billion", "dozen"})
ORDINALS = {word: float(value) for value, word in enumerate(_ORDINALS, 1)}
ORDINAL_ENDS = frozenset("st nd rd th".split())

_UNITS = """
$ dollar dollars usd buck bucks|€ euro euros eur|£ pound pounds gbp sterling quid|¥ yen jpy|₹ rupee rupees inr
yuan rmb cny|franc francs chf|peso pesos mxn|ruble rubles rouble roubles rub|krona kronor sek|zloty pln|won krw
bitcoin btc|ether ethereum eth|aud|cad|nzd|cent cents|pence penny pennies|% percent pct percentage|° degree degrees
km kilometer kilometers kilometre kilometres|mile miles|meter meters metre metres|cm centimeter centimeters centimetre
mm millimeter millimeters|foot feet ft|inch inches|yard yards|kg kilo kilos kilogram kilograms|gram grams
mg milligram milligrams
lb lbs|ounce ounces oz|ton tons tonne tonnes|liter liters litre litres|ml milliliter milliliters|gallon gallons
cup cups|pint pints|quart quarts|tablespoon tablespoons tbsp|teaspoon teaspoons tsp|second seconds sec secs
minute minutes min mins|hour hours hr hrs|day days daily|week weeks weekly|month months monthly
year years yearly annual annually
ms millisecond milliseconds|am a.m|pm p.m|celsius centigrade|fahrenheit|kelvin|calorie calories|watt watts|volt volts
kb kilobyte kilobytes|mb megabyte megabytes|gb gigabyte gigabytes|tb terabyte terabytes|mph|kph
"""
UNITS = {word: group.split()[0] for group in _UNITS.replace("\n", "|").split("|") if group for word in group.split()}
"""Each with the first of those that mean the same."""
_MONTHS = "january february march april may june july august september october november december".split()
_TIMES = "today tonight tomorrow yesterday weekend spring summer autumn winter christmas easter".split()
_DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
DATES = {
    **{word: word for word in [*_MONTHS, *_DAYS]},

    **{word: word for word in _TIMES},
    **{word[:3]: word for word in _MONTHS if word not in ("march", "may", "december")},
    "sept": "september", "fall": "autumn", "tues": "tuesday", "thurs": "thursday", "wed": "wednesday", "fri": "friday",
    **{word: word for word in "morning noon afternoon evening night midnight".split()},
}  # fmt: skip
AMBIGUOUS_DATES = frozenset("may march fall spring".split())
"""Only beside a number, or with a capital inside a sentence."""

QUANTITIES = {
    "all": "all", "every": "all", "everyone": "all", "everything": "all", "everybody": "all", "entire": "all",
    "whole": "all",
    "only": "only", "solely": "only", "exclusively": "only", "most": "most", "mostly": "most", "few": "few",
    "several": "several",
    "some": "some", "any": "some", "both": "both", "either": "either", "twice": "double", "double": "double",
    "triple": "triple", "once": "once",
    "always": "always", "sometimes": "sometimes", "often": "often", "rarely": "rarely", "seldom": "rarely",
    "except": "except", "excluding": "except", "unless": "unless", "least": "least", "minimum": "least",
    "maximum": "max",
    "exactly": "exactly", "approximately": "about", "roughly": "about", "average": "average", "total": "total",
}  # fmt: skip

_OPPOSITES = """
enable activate unlock unblock unfreeze allow permit authorize|disable deactivate lock block freeze forbid prohibit deny
allow|ban
open|close shut
start begin launch resume continue|stop end finish pause halt quit terminate
on|off
buy purchase|sell
deposit|withdraw withdrawal withdrawn withdrew
before prior|after following afterwards
increase raise rise grow gain higher up upgrade|decrease reduce drop fall shrink lose lower down downgrade
first earliest initial|last latest final
send sent pay paid give gave given lend|receive receipt got get take took borrow
import upload|export download
add insert include attach install create make|remove delete exclude detach uninstall destroy erase
accept approve agree|reject decline refuse disagree
login signin|logout signout
arrive arrival|depart departure leave
win won|lose lost
push|pull
join subscribe|unsubscribe
max maximum most highest largest biggest longest|min minimum least lowest smallest shortest
more greater above over exceed|less fewer fewest below under
big large|small little tiny
long|short
high|low
fast quick faster quicker|slow slower
hot warm|cold cool
hard difficult|easy simple
old older|new newer
early earlier|late later
cheap cheaper inexpensive|expensive pricey costly
good better best pro pros advantage benefit|bad worse worst con cons disadvantage drawback
positive|negative
true|false
yes|no
right correct|wrong incorrect
success succeed successful|fail failure failed unsuccessful
true real|false fake
safe|dangerous unsafe
legal|illegal
public|private
free|paid
full|empty
inside in indoor indoors|outside out outdoor outdoors
top upper|bottom
front|back rear
north northern|south southern
east eastern|west western
ascending|descending
incoming inbound|outgoing outbound
internal|external
male man men boy husband father son brother|female woman women girl wife mother daughter sister
parent|child
encrypt encode compress|decrypt decode decompress
lend loan|borrow
debit|credit
income revenue profit|expense cost loss
asset|liability
physical|virtual
permanent|temporary
manual manually|automatic automatically
single|multiple double
single|married
married|divorced
common|rare
thick|thin
wide|narrow
strong|weak
heavy|light
wet|dry
dark|light
hide|show
forget forgot forgotten|remember
love like|hate dislike
with|without
majority|minority
alive|dead
vertical|horizontal
input|output
client|server
read|write
source|destination
sunrise|sunset
breakfast|dinner
morning|evening
day|night
cancel|confirm
previous past|next future
mandatory required|optional
odd|even
domestic|international
local|foreign
lost lose|found find
break broken|fix fixed
remain stay|leave
connect|disconnect
freeze|melt
"""
_ENDINGS = ("ing", "ed", "es", "s", "ly", "e")
_IRREGULAR = {
    "bought": "buy", "sold": "sell", "began": "begin", "begun": "begin", "rose": "rise", "risen": "rise",
    "fell": "fall",
    "left": "leave", "froze": "freeze", "frozen": "freeze", "went": "go", "gone": "go", "made": "make", "men": "man",
    "shown": "show", "hidden": "hide", "hid": "hide", "broke": "break", "wrote": "write", "written": "write",
    "lent": "lend",
    "withdrew": "withdraw", "withdrawn": "withdraw", "grew": "grow", "grown": "grow", "took": "take", "taken": "take",
    "gave": "give", "given": "give", "sent": "send", "paid": "pay", "got": "get", "lost": "lose", "found": "find",
}  # fmt: skip


@lru_cache(8192)
def stem(word: str) -> str:
    """A word without its usual English endings: the same for forms of a word, not always a word itself."""
    word = _IRREGULAR.get(word, word)
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word[: -len(ending)]
            if ending in ("ing", "ed") and len(word) > 3 and word[-1] == word[-2] and word[-1] not in "ls":
                word = word[:-1]
            if ending not in ("s", "ly"):
                break
    return word[:-1] + "i" if word.endswith("y") and len(word) > 3 else word


def _poles() -> dict[str, tuple[tuple[str, int], ...]]:
    poles: dict[str, tuple[tuple[str, int], ...]] = {}
    for line in _OPPOSITES.strip().splitlines():
        one, other = line.split("|")
        for side, words in ((1, one), (-1, other)):
            for root in {stem(word + ending) for word in words.split() for ending in ("", "er", "est")}:
                there = poles.get(root, ())
                if all(axis != one for axis, _ in there):
                    poles[root] = (*there, (one, side))
    return poles


POLES = _poles()
"""Stems with the axes they are on, and on which side."""
PREFIXES = ("un", "in", "im", "ir", "il", "dis", "de", "non", "mis", "anti")
"""Each turns a word into its opposite."""
DIRECTIONS = {
    "from": "from", "to": "to", "into": "to", "toward": "to", "towards": "to", "than": "than", "by": "by",
    "over": "over",
    "before": "before", "after": "after", "until": "until", "between": "between", "against": "against", "versus": "vs",
}  # fmt: skip
"""Prepositions that give what follows its part."""
FILLERS = frozenset(
    (
        "a an the this that these those i me my mine we us our you your yours he him his she her it its they them "
        "their is am are was were be been being do does did done have has had having will would shall should can "
        "could may might must of in on at to for from with by as into about than and or but so if then else when "
        "where what which who whom whose why how there here just please kindly really actually also too very much "
        "many some any hi hello hey thanks thank ok okay yes well now currently today again ever still need want "
        "like know tell let help get up out off over s t ve re ll d m im id ive youre whats hows wheres"
    ).split(),
)
"""Words whose place says little."""
