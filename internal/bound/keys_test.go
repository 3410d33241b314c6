package bound

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

func TestUniqueNamesTheKey(t *testing.T) {
	var many strings.Builder
	for i := range 3 * fewKeys {
		fmt.Fprintf(&many, `"k%d":%d,`, i, i)
	}
	for in, twice := range map[string]string{
		`{}`: "", `7`: "", `"a"`: "", `[{"a":1},{"a":2}]`: "", `{"a":{"a":1},"b":["a","a"]}`: "", `{"a":"\",\"a","b":"a"}`: "", `{"A":1,"a":2}`: "",
		`{"a":1,"a":1}`: "a", `{"x":[{"b":1, "c":{} ,"b":[]}]}`: "b", `{"a":{"b":1},"c":2,"a":3}`: "a", `{"a":1,"\u0061":2}`: "a", `{"a":[1,{"x":2}],"b":"]","a":0}`: "a",
		"{" + many.String() + `"z":0}`: "", "{" + many.String() + `"k3":0}`: "k3", "{" + many.String() + fmt.Sprintf(`"k%d":0}`, 3*fewKeys-1): fmt.Sprintf("k%d", 3*fewKeys-1),
	} {
		if !json.Valid([]byte(in)) {
			t.Fatalf("%s is no JSON", in)
		}
		err := Unique([]byte(in), "f")
		if twice == "" && err != nil || twice != "" && (cell.KindOf(err) != cell.Invalid || err.Error() != `cannot read f: "`+twice+`" is in one object twice`) {
			t.Errorf("%.60s: %v", in, err)
		}
	}
}

// Whatever it is given, it ends, and an object that encoding/json wrote has no key twice.
func FuzzUnique(f *testing.F) {
	for _, s := range []string{`{"a":1,"a":2}`, `{"\u0061":[{}]}`, `{"`, `}]`, `{,"a`, `"\`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		Unique(b, "f")
		var v any
		if json.Unmarshal(b, &v) != nil {
			return
		}
		again, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := Unique(again, "f"); err != nil {
			t.Errorf("%q: %v", again, err)
		}
	})
}

func BenchmarkUnique(b *testing.B) {
	in := []byte(`{"command":["true"],"env":["A=1","B=2"],"allow":["@npm"],"limits":{"cpus":"1","memory":"1G"},"content":"` + strings.Repeat("x", 1<<16) + `"}`)
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		if err := Unique(in, "f"); err != nil {
			b.Fatal(err)
		}
	}
}
