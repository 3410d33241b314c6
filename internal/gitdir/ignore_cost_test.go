package gitdir

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/bound/boundtest"
)

// A pattern made to try every combination costs no more than others.
func TestIgnoreHostilePatternIsCheap(t *testing.T) {
	ig := NewIgnore(func(string) ([]byte, error) { return nil, fs.ErrNotExist },
		IgnoreFile{"x", []byte(strings.Repeat("*a", 60) + "b\n" + strings.Repeat("**/*a*/", 40) + "b\n" + strings.Repeat("ab?", 1<<18) + "\n" + strings.Repeat("a", 1<<20))})
	if got, _ := ig.verdict(strings.Repeat("a/", 1000)+strings.Repeat("a", 250), false); got {
		t.Error("matched")
	}
}

func typicalIgnore() ([]string, func() *Ignore) {
	rules := "node_modules/\n/dist\n/build/\n*.log\nnpm-debug.log*\n.DS_Store\n.env\n.env.*\n!.env.example\ncoverage/\n*.tsbuildinfo\n.cache\n.next/\nout/\n*.pid\n*.seed\n" +
		"__pycache__/\n*.py[cod]\n*$py.class\n*.so\n.Python\ndevelop-eggs/\neggs/\n.eggs/\nlib64/\nparts/\nsdist/\nvar/\nwheels/\n*.egg-info/\n.installed.cfg\n*.egg\nMANIFEST\n" +
		"htmlcov/\n.tox/\n.nox/\n.coverage\n.coverage.*\nnosetests.xml\n*.cover\n.hypothesis/\n.pytest_cache/\n*.mo\n*.pot\nlocal_settings.py\ndb.sqlite3\ninstance/\n.scrapy\ndocs/_build/\n" +
		"target/\n.ipynb_checkpoints\nprofile_default/\nipython_config.py\n.venv\nenv/\nvenv/\n**/*.rs.bk\n/tmp/**/cache\n[Bb]in/\n[Oo]bj/\n*.user\n*.suo\n.idea/\n.vscode/*\n!.vscode/settings.json\n*.swp\n*~\n"
	files := map[string][]byte{".gitignore": []byte(rules), "pkg5/.gitignore": []byte("*.gen.go\n/testdata/out\n")}
	var paths []string
	for i := range 100_000 {
		paths = append(paths, fmt.Sprintf("pkg%d/internal/module%d/source_file_%d.go", i%20, i%1000, i))
	}
	return paths, func() *Ignore {
		return NewIgnore(func(p string) ([]byte, error) {
			if b := files[p]; b != nil {
				return b, nil
			}
			return nil, fs.ErrNotExist
		})
	}
}

// BenchmarkIgnore100k matches 100,000 paths in 1000 folders against 70 rules,
// folders not yet seen included; it must stay well below 200 ms.
func BenchmarkIgnore100k(b *testing.B) {
	paths, open := typicalIgnore()
	for b.Loop() {
		ig := open()
		for _, p := range paths {
			ig.verdict(p, false)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/100k")
}

// FuzzIgnore: no rules and no path make matching fail or take long.
func FuzzIgnore(f *testing.F) {
	f.Add([]byte("*.o\n!keep.o\n/a/**/b/\n[[:alpha:]-z]\\ \n"), "a/x/b", true)
	f.Add([]byte("[!a-\n**\\/\r\n\xef\xbb\xbf"), "\xff/", false)
	f.Fuzz(func(t *testing.T, rules []byte, path string, isDir bool) {
		boundtest.Allocates(t, len(rules)+len(path), func() {
			ig := NewIgnore(func(p string) ([]byte, error) {
				if p == ".gitignore" {
					return rules, nil
				}
				return nil, fs.ErrNotExist
			})
			ignored, rule := ig.verdict(path, isDir)
			if ignored && rule == "" {
				t.Fatal("ignored by nothing")
			}
			if rule != "" && !strings.HasPrefix(rule, ".gitignore:") {
				t.Fatalf("rule %q", rule)
			}
		})
	})
}
