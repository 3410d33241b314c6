#include <fcntl.h>
#include <openssl/rand.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static volatile sig_atomic_t renew;

static void told(int sig) {
	(void)sig;
	renew = 1;
}

static char *hex(const unsigned char *b, char *to) {
	for (int i = 0; i < 16; i++)
		sprintf(to + 2 * i, "%02x", b[i]);
	return to;
}

int main(void) {
	int log = open("log-c", O_WRONLY | O_APPEND | O_CREAT, 0644);
	unsigned char b[16];
	char a[33], c[33], line[512];
	signal(SIGUSR1, told);
	renew = 1;
	for (;;) {
		if (renew) {
			unsigned seed;
			renew = 0;
			if (RAND_poll() != 1 || getrandom(&seed, sizeof seed, 0) != sizeof seed)
				return 1;
			srandom(seed);
		}
		if (getrandom(b, sizeof b, 0) != sizeof b)
			return 1;
		hex(b, a);
		if (RAND_bytes(b, sizeof b) != 1)
			return 1;
		int n = snprintf(line, sizeof line, "getrandom %s\nRAND_bytes %s\nrandom %ld\n", a, hex(b, c), random());
		if (write(log, line, n) != n)
			return 1;
		usleep(200000);
	}
}
