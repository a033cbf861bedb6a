"""Write datasets in the formats of other libraries."""

from rlds_cli.bridges.exports.exporting import FORMATS as FORMATS
from rlds_cli.bridges.exports.exporting import Exported as Exported
from rlds_cli.bridges.exports.exporting import ExportPlan as ExportPlan
from rlds_cli.bridges.exports.exporting import export as export
from rlds_cli.bridges.exports.exporting import plan_export as plan_export
