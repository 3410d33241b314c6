import unittest

from primes import primes


class Primes(unittest.TestCase):
    def test_few(self):
        self.assertEqual(primes(20), [2, 3, 5, 7, 11, 13, 17, 19])

    def test_none(self):
        for n in (0, 1, 2):
            self.assertEqual(primes(n), [])

    def test_squares_are_none(self):
        self.assertNotIn(49, primes(50))


if __name__ == "__main__":
    unittest.main()
