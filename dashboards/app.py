"""The dashboard, a page for each browser session: `panel serve dashboards/app.py [--args LOG RUN ...]`."""

import sys

from walkit.views import app

app(sys.argv[1:]).servable()
