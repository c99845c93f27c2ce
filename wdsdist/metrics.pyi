from wdsdist.diagnostics.metrics import Metric as Metric
from wdsdist.diagnostics.metrics import read as read
from wdsdist.diagnostics.metrics import register as register
from wdsdist.diagnostics.metrics import serve as serve
