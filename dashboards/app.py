"""The dashboard, a page for each browser session: `panel serve dashboards/app.py`."""

from walkit.views import app

app().servable()
