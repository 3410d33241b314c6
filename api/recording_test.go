package api

import (
	"strconv"
	"testing"
)

func TestWordsOfARecording(t *testing.T) {
	bytes := func(n int64) string { return strconv.FormatInt(n, 10) + " B" }
	for want, r := range map[string]Recording{
		"0 exchanges, 0 B": {},
		"1 exchange, 7 B; 1 body was cut; not recorded: 2 tcp, 1 untrusted; incomplete: its keeper did not close it": {Exchanges: 1, Bytes: 7, Cut: 1,
			NotRecorded: map[string]int64{"untrusted": 1, "tcp": 2}, Incomplete: "its keeper did not close it"},
	} {
		if got := r.Words(bytes); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
