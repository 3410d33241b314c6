package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// C31: a limit that is missing, zero, negative, or more than any number can be is an
// error, and never no limit; what is not given is what the documents say.
func TestC31ServeLimits(t *testing.T) {
	flags := func(args ...string) (l ServeLimits, err error) {
		f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		f.SetOutput(new(strings.Builder))
		LimitFlags(f, &l)
		return l, f.Parse(args)
	}
	page, err := os.ReadFile("../../docs/howto/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range ServeLimitTable {
		for _, v := range []string{"", " ", "0", "-1", "-0", "0.0", "NaN", "Inf", "-Inf", "1e400", "99999999999999999999T", "9223372036854775808", "none", "unlimited", "0x10"} {
			if l, err := flags("--" + x.Flag + "=" + v); err == nil {
				t.Errorf("--%s=%q is taken: %+v", x.Flag, v, l)
			}
		}
		if row := fmt.Sprintf("| `--%s` | %s |", x.Flag, x.Default); !strings.Contains(string(page), row) {
			t.Errorf("the page has no row %s", row)
		}
	}
	l, err := flags()
	if want := (ServeLimits{Rate: 500, Requests: 1000, Connections: 4096, Failures: 100, Body: 16 << 20, Archive: 4 << 30, Cells: 100_000, Free: 64 << 20}); l != want || err != nil {
		t.Errorf("by default %+v, %v", l, err)
	}
	if l, err := flags("--max-rate", "0.5", "--max-cells", "7", "--min-free", "1.5G", "--max-state", "2G"); err != nil || l.Rate != .5 || l.Cells != 7 || l.Free != 3<<29 || l.State != 2<<30 {
		t.Errorf("%+v, %v", l, err)
	}
}
