"""Initial data of the bank. The tuples are immutable, because all environments are built from them."""

CURRENT_IBAN = "DE20100500005407324931"
SAVINGS_IBAN = "DE52100500009400018276"

_EMPLOYER = "DE74430609672017004100"
LANDLORD = "DE57120300001066733812"
POWER = "NL98INGB0001393698"
GYM = "DE69700202700010423877"
FRIEND = "AT611904300234573201"
_SHOP = "DE05370502990031877045"
SEA_RESCUE = "ES9121000418450200051332"

# (day, IBAN of the other party, euros, subject), oldest first.
TRANSACTIONS = (
    ("2026-01-02", LANDLORD, "-920.00", "Rent January, Hafenstrasse 12"),
    ("2026-01-05", POWER, "-64.50", "Electricity instalment, customer 40117"),
    ("2026-01-09", _SHOP, "-83.17", "Groceries"),
    ("2026-01-15", GYM, "-29.90", "Climbing hall membership"),
    ("2026-01-30", _EMPLOYER, "2650.00", "Salary January, Tidewater Charts"),
    ("2026-02-02", LANDLORD, "-920.00", "Rent February, Hafenstrasse 12"),
    ("2026-02-05", POWER, "-64.50", "Electricity instalment, customer 40117"),
    ("2026-02-11", _SHOP, "-112.46", "Groceries"),
    ("2026-02-14", FRIEND, "38.00", "Your half of the dinner? No: mine! Mateo"),
    ("2026-02-16", GYM, "-29.90", "Climbing hall membership"),
    ("2026-02-20", "FR1420041010050500013M02606", "-149.00", "Train tickets Hamburg-Paris, order 7731"),
    ("2026-02-27", _EMPLOYER, "2650.00", "Salary February, Tidewater Charts"),
    ("2026-03-02", LANDLORD, "-920.00", "Rent March, Hafenstrasse 12"),
)

# (IBAN to credit, euros, subject, interval, next day)
STANDING_ORDERS = (
    (LANDLORD, "920.00", "Rent, Hafenstrasse 12", "monthly", "2026-04-02"),
    (POWER, "64.50", "Electricity instalment, customer 40117", "monthly", "2026-03-05"),
    (GYM, "29.90", "Climbing hall membership", "monthly", "2026-03-16"),
    (SEA_RESCUE, "60.00", "Sea rescue, yearly donation", "yearly", "2026-12-01"),
)
