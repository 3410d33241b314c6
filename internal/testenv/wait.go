package testenv

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// patience is how long a test waits for an event before it fails. It is generous,
// since a passing test does not spend it.
const patience = 2 * time.Minute

// Patience is the one deadline of tests that wait for something outside of a
// synctest bubble. PANDO_TEST_SLOW=N makes it N times as long.
func Patience() time.Duration {
	if n, err := strconv.ParseFloat(os.Getenv("PANDO_TEST_SLOW"), 64); err == nil && n > 0 {
		return time.Duration(n * float64(patience))
	}
	return patience
}

// Receive returns the next value of ch, and whether one was sent: false says that ch
// is closed. It fails the test when neither happens. what names the event.
func Receive[T any](t testing.TB, ch <-chan T, what string) (T, bool) {
	t.Helper()
	deadline := time.NewTimer(Patience())
	defer deadline.Stop()
	select {
	case v, ok := <-ch:
		return v, ok
	case <-deadline.C:
		t.Fatalf("%s did not happen within %s", what, Patience())
		panic("not reached")
	}
}

// Eventually polls until condition holds, and fails the test when it never does.
// what names the condition. A test that can wait for an event uses Receive.
func Eventually(t testing.TB, condition func() bool, what string) {
	t.Helper()
	for end := time.Now().Add(Patience()); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not happen within %s", what, Patience())
		}
	}
}
