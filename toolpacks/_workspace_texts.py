"""Contents of the initial files of the workspace."""

PLAN = """\
# Harbour Charts 2.0: release plan

| step                | who   | until      |
| ------------------- | ----- | ---------- |
| tide tables offline | Omar  | 2026-03-06 |
| night colours       | Elif  | 2026-03-11 |
| pilot with 6 boats  | Jonas | 2026-03-20 |
| release             | Nora  | 2026-03-31 |

Open: who tests on old tablets? Does the pilot need printed charts as a fallback?
"""

BUDGET = """\
item,planned,spent
survey data licences,12000,11850
test tablets,1800,640
travel,2500,1475
translation,900,0
printing,600,210
"""

OFFER = """\
# Offer to Lagoon Sailing

- 24 boats, one licence each, 12 months: 24 x 95 = 2280 euros
- Pilot with 6 boats until 20 March: free
- Discount when signed before 20 March: 10 percent, which makes 2052 euros
- Support by mail, answered within one working day
"""

FEEDBACK = """\
# Feedback from the pilot boats

- "Aurora": chart is too bright at night, we cover the tablet with a towel.
- "Bora": tide times were an hour late on 22 February, probably the time zone.
- "Calypso": works well, but loading needs 40 seconds on the old tablet.
- "Aurora": please mark the new wreck off the eastern mole.
"""

INCIDENT = """\
# Tide times one hour late, 22 February

Cause: the tables are in UTC, the tablet showed them without converting to local time.
Who saw it: two boats, for nine hours. Nobody ran aground.
Mended in build 118. Still to do: a test with a tablet set to another time zone.
"""

TRIP = """\
# Venice, 12 and 13 March

- Train from Hamburg on 11 March at 18:36, berth 42, booking KX7731
- Hotel Laguna, two nights, 118 euros each, free to cancel until 6 March
- 12 March, 10:00: Sofia at the Lagoon Sailing pier, boat "Aurora"
- Bring: two tablets, printed harbour charts, rain jacket
"""

FIRST_WEEK = """\
# Your first week at Tidewater

Monday: keys from Tom Becker, laptop from Omar. Tuesday: sit with Elif. Wednesday: a day on a boat.
The kitchen is ours until 18:00; whoever finishes the coffee makes the next.
Questions go to whoever is nearest.
"""

NAMES = """\
Names for the night mode: Lantern, Low Light, Lee Shore, Dog Watch.
Favourites so far: Dog Watch (Omar, Nora), Lantern (Jonas, Sofia).
"""
