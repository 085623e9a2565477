import unittest

from basket import cheapest, shown, total


class Basket(unittest.TestCase):
    def test_the_discount_is_taken_off(self):
        assert total([10, 20], discount=10) == 27

    def test_nothing_costs_nothing(self):
        assert total([]) == 0
        assert cheapest([]) is None

    def test_amounts_have_two_digits(self):
        assert shown(12.5) == "12.50 €"


if __name__ == "__main__":
    unittest.main()
