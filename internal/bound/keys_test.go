package bound

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

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
		err := Unique([]byte(in), "f", nil)
		if twice == "" && err != nil || twice != "" && (cell.KindOf(err) != cell.Invalid || err.Error() != `cannot read f: "`+twice+`" is in one object twice`) {
			t.Errorf("%.60s: %v", in, err)
		}
	}
}

// request is a type of all kinds.
type request struct {
	Count  int `json:"count"`
	Plain  string
	Hidden string            `json:"-"`
	Env    map[string]string `json:"env"`
	Limits *struct {
		Memory string `json:"memory"`
	} `json:"limits"`
	Mounts []struct {
		Source string `json:"source"`
	} `json:"mounts"`
	By  map[string]struct{ A int } `json:"by"`
	Raw json.RawMessage            `json:"raw"`
	At  time.Time                  `json:"at"`
	inner
}

type inner struct {
	Deep string `json:"deep"`
}

// encoding/json finds fields without regard to case, so that the last of two keys would count.
func TestUniqueFieldsDifferInMoreThanCase(t *testing.T) {
	for in, twice := range map[string]bool{
		`{"count":1,"Count":2}`: true, `{"Count":1,"cOUNT":2}`: true, `{"plain":"a","PLAIN":"b"}`: true, `{"deep":"","Deep":""}`: true,
		`{"mounts":[{"source":"a"},{"source":"b","\u0053ource":"c"}]}`: true, `{"Limits":{"memory":"1","MEMORY":"2"}}`: true, `{"by":{"a":{"a":1,"A":2}}}`: true,
		`{"mount\u017f":[],"mounts":[]}`:                                             true, // the long s is the same letter in another case
		`{"env":{"a":"1","A":"2"},"ENVI":1,"envi":2,"by":{"a":{"A":1},"A":{"A":1}}}`: false,
		`{"raw":{"a":1,"A":2},"hidden":1,"Hidden":2,"at":{"b":1,"B":1}}`:             false,
		`{"limits":{"memory":"1"},"mounts":[{"source":"a"},{"Source":"b"}]}`:         false,
		`[{"count":1,"Count":2}]`:                                                    false, `{"env":[{"a":1,"A":2}],"mounts":{"source":1,"Source":2}}`: false,
	} {
		err := Unique([]byte(in), "f", reflect.TypeFor[*request]())
		if twice != (cell.KindOf(err) == cell.Invalid) || twice && !strings.Contains(err.Error(), "differ in case alone") {
			t.Errorf("%s: %v", in, err)
		}
	}
}

// Whatever it is given, it ends, and an object that encoding/json wrote has no key twice.
func FuzzUnique(f *testing.F) {
	for _, s := range []string{`{"a":1,"a":2}`, `{"\u0061":[{}]}`, `{"`, `}]`, `{,"a`, `"\`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		Unique(b, "f", nil)
		var v any
		if json.Unmarshal(b, &v) != nil {
			return
		}
		again, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := Unique(again, "f", nil); err != nil {
			t.Errorf("%q: %v", again, err)
		}
	})
}

func BenchmarkUnique(b *testing.B) {
	in := []byte(`{"command":["true"],"env":["A=1","B=2"],"allow":["@npm"],"limits":{"cpus":"1","memory":"1G"},"content":"` + strings.Repeat("x", 1<<16) + `"}`)
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		if err := Unique(in, "f", reflect.TypeFor[request]()); err != nil {
			b.Fatal(err)
		}
	}
}
