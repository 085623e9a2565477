"""The price of a basket."""


def total(prices, discount=0):
    """All prices together, less a discount in percent."""
    amount = 0
    for price in prices:
        amount = amount + price
    return amount - amount * discount / 100


def cheapest(prices):
    if len(prices) == 0:
        return None
    return min(prices)


def shown(amount, currency="€"):
    """For people: 12.5 is 12.50 €."""
    return f"{amount:.2f} {currency}"
