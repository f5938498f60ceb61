"""Requests, responses, events, traces and storage records as frozen structs. Data only: no logic that decides."""

from .account import *
from .admission import *
from .agent import *
from .analytics import *
from .cache import *
from .comparison import *
from .decision import *
from .events import *
from .ledger import *
from .limits import *
from .model import *
from .plain import JsonObject as JsonObject
from .policy import *
from .request import *
from .response import *
from .simulation import *
from .status import *
from .storage import *
from .trace import *
from .upstream import *
from .webhook import *
