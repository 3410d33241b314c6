package finding

import (
	"slices"
	"testing"

	"github.com/pando-dev/pando/api"
)

func TestClockSet(t *testing.T) {
	for line, is := range map[string]bool{
		"export LC_ALL=C": true, "  TZ: Europe/Paris": true, `"test": "TZ=UTC jest"`: true, "ENV TZ UTC": true, "os.environ['TZ'] = 'UTC'": true, "process.env.TZ = 'UTC'": true,
		"faketime 2020-01-01 make": true, "SOURCE_DATE_EPOCH ?= 0": true, "LANGUAGE=x": false, "if [ $TZ == x ]": false, "os.environ['TZ'] == 'UTC'": false, "echo LANG": false, "- LANGUAGE: x": false,
	} {
		s := seen{after: files(".github/workflows/a.yml", line+"\n")}
		if got := slices.ContainsFunc(Find(s.evidence()), func(f api.RunFinding) bool { return f.Rule == "clock-set" }); got != is {
			t.Errorf("%q: %v", line, got)
		}
	}
}
