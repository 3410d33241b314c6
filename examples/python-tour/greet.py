def greet(n):
    return "Helo, " + n
