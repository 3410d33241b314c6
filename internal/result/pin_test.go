package result

import (
	"slices"
	"testing"
)

func TestProgramsOfACheck(t *testing.T) {
	for command, want := range map[string][]string{
		"./check.sh":        {"./check.sh"},
		"sh ./check.sh a b": {"./check.sh"},
		"cd a && env A=b timeout 10 bash -e x.sh": {"cd", "x.sh"},
		"make test; 'my tests/x' | grep -q y":     {"make", "my tests/x", "grep"},
		`test "$(sh add.sh 2 2)" = 4`:             {"test"},
		"(python3 tests/run.py) && ! ./other":     {"tests/run.py", "./other"},
		"":                                        nil,
		"A=1 B=./x ./y":                           {"./y"},
	} {
		if got := programs(command); !slices.Equal(got, want) {
			t.Errorf("%q runs %q, want %q", command, got, want)
		}
	}
}
