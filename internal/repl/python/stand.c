/* What a trunk does between its forks: it reads a request, clones itself, says
 * what came of it, and reads the next. The child puts its streams in place, enters
 * its cgroups, closes everything else, gives up what it may not keep, and goes
 * back to Python. Nothing of Python runs in the trunk meanwhile: its memory is the
 * same for every fork, and none holds pages of its own for what the trunk did.
 *
 * 75_stand.py has the code that this is, made by
 *
 *	CC -Os -fPIC -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables \
 *		-fomit-frame-pointer -nostdlib -c stand.c && objcopy -O binary -j .text stand.o
 *
 * with gcc 12 for x86-64 (and -fcf-protection=none) and for arm64. It has no data
 * and calls nothing.
 */
struct msghdr { void *name; unsigned namelen, p0; void *iov; unsigned long iovlen; void *control; unsigned long controllen; int flags, p1; };
struct op { long nr, a[5]; };
struct stand {
	long sock, flags, tid, room;      /* room: bytes for control messages */
	struct msghdr *msg;
	int *files;                       /* where the descriptors of a message come to lie */
	struct op *ops;                   /* ended by nr < 0 */
	const char *said;
	long length;
	const char *zero;
	long answer;
};
#ifdef __x86_64__
enum { SENDTO = 44, RECVMSG = 47, CLONE = 56, CLOSE = 3, DUP3 = 292, WRITE = 1, CLOSE_RANGE = 436 };
static inline __attribute__((always_inline)) long call(long nr, long a, long b, long c, long d, long e, long f)
{
	long r;
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(r) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return r;
}
#define TIDS(t) 0, (t), 0
#else
enum { SENDTO = 206, RECVMSG = 212, CLONE = 220, CLOSE = 57, DUP3 = 24, WRITE = 64, CLOSE_RANGE = 436 };
static inline __attribute__((always_inline)) long call(long nr, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = nr, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}
#define TIDS(t) 0, 0, (t)
#endif
long stand(struct stand *s)
{
	for (;;) {
		s->msg->controllen = s->room;
		long n = call(RECVMSG, s->sock, (long)s->msg, 0x40000000, 0, 0, 0);
		if (n == -4)
			continue;
		if (n <= 0)
			return n ? n : -1;
		long files = s->msg->controllen >= 16 ? (long)(s->msg->controllen - 16) / 4 : 0;
		if (files >= 4)
			n = call(CLONE, s->flags, 0, TIDS(s->tid), 0);
		else
			n = -22;
		if (n == 0) {
			call(DUP3, s->files[0], 3, 02000000, 0, 0, 0);
			for (long i = 0; i < 3; i++)
				call(DUP3, s->files[i + 1], i, 0, 0, 0, 0);
			for (long i = 4; i < files; i++)
				call(WRITE, s->files[i], (long)s->zero, 1, 0, 0, 0);
			call(CLOSE_RANGE, 4, 0xffffffff, 0, 0, 0, 0);
			for (struct op *o = s->ops; o->nr >= 0; o++)
				call(o->nr, o->a[0], o->a[1], o->a[2], o->a[3], o->a[4], 0);
			call(WRITE, 3, (long)s->said, s->length, 0, 0, 0);
			return 0;
		}
		for (long i = 0; i < files; i++)
			call(CLOSE, s->files[i], 0, 0, 0, 0, 0);
		s->answer = n;
		call(SENDTO, s->sock, (long)&s->answer, 8, 0x4000, 0, 0);
	}
}
