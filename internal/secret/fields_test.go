package secret

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// scrubCase is one file before and after. «x» marks what goes, «x|y» what
// becomes y.
type scrubCase struct{ path, text string }

const someSecret = "hunter2" + "-Sw0rdfish"

var scrubCases = []scrubCase{
	{".npmrc", "registry=https://r.example/\n//r.example/:_authToken=«" + someSecret + "»\n; //old/:_authToken = «abc»\n_auth=«dXNlcjpwYXNz»\nemail=a@b\n" +
		"//e/:_authToken=${NPM_TOKEN}\n//e/:username=me\n//e/:_password = «\"c2VjcmV0\"»\nalways-auth=true\nhttps-proxy=http://me«:pw»@proxy:8080/\nr.example/:_authToken=«x»\nkey=«-----BEGIN…»\nkeyfile=/a/b\n"},
	{".npmrc", "_authToken=«last line without end»"},
	{"a/.npmrc", "\r\n//r/:_authToken=«x»\r\nfoo=bar\r\n"},
	{".yarnrc", "registry \"https://r/\"\n\"//r/:_authToken\" «\"abc\"»\n_password «abc»\nlastUpdateCheck 1\n"},
	{".yarnrc.yml", "nodeLinker: pnp\nnpmAuthToken: «abc#def,ghi|\"\"»\nnpmScopes:\n  my:\n    npmAuthToken: \"«${X}-suffix»\" # why\n    npmAuthIdent: «>-\n      user:\n      pass|\"\"»\n    npmRegistryServer: \"https://u«:p»@h/\"\n" +
		"npmRegistries: {\"//h\": {npmAuthToken: «abc|\"\"», npmAlwaysAuth: true}}\nnpmAuthToken: ${NPM_TOKEN}\nnpmAuthToken: '«it»'\nnpmAuthToken: ${NPM_TOKEN-}\n"},
	{"bunfig.toml", "[install.registry]\nurl = \"https://u«:p»@h/\"\ntoken = \"«abc»\"\n[install.scopes]\n\"@x\" = { token = \"$npm_token\", url = \"h\" }\ny = { password = '«p»', username = 'u' }\n"},
	{".pypirc", "[pypi]\nusername = __token__\npassword = «" + someSecret + "»\n[other]\nrepository: https://u«:pw»@h/\nPassword: «\n   on the next line\n  and the next»\nusername:x\n[indented]\n  password = «x»\n  repository = https://h/\n  password = «x\n    y»\n\n  user = z\n"},
	{"pip.conf", "[global]\nindex-url = https://user«:pw»@h/simple\nextra-index-url =\n  https://u«:p»@a/\n  https://${U}:${P}@b/\n  https://plain/\n"},
	{".gemrc", ":sources:\n- https://u«:p»@h/\n:rubygems_api_key: «abc|\"\"»\n"},
	{".bundle/config", "---\nBUNDLE_GEMS__CONTRIBSYS__COM: \"«abc:def»\"\nBUNDLE_GITHUB__COM: «abc|\"\"»\nBUNDLE_BUILD__NOKOGIRI: \"--use-system-libraries\"\nBUNDLE_PATH: vendor\n"},
	{".cargo/config.toml", "[registries.x]\nindex = \"sparse+https://h/\"\ntoken = \"«abc»\"\n[registry]\ntoken='«abc»'\nglobal-credential-providers = [\"cargo:token\"]\n[registries]\ny.token = \"\"\"«\nabc»\"\"\"\ny.secret-key=\"«k\\\"k»\"\n"},
	{"NuGet.Config", `<configuration><packageSources><add key="f" value="https://u«:p»@h/" /></packageSources><packageSourceCredentials><f>
  <add key="Username" value="me" /><add key="ClearTextPassword" value="«a>b»" /><add value='«x»' key='Password'/><add key="Password" value="%PW%"/>
</f></packageSourceCredentials><apikeys><add key="https://h/" value="«abc»" /></apikeys><config><add key="dependencyVersion" value="Highest"/></config></configuration>`},
	{".m2/settings.xml", "<settings><servers><server><id>x</id><username>u</username><password>«a&amp;b»</password></server>\n<!-- <password>«old»</password> --><server><password>${env.PW}</password><passphrase>«\n p \n»</passphrase><password>«<![CDATA[x<y]]>»</password><password/></server></servers></settings>"},
	{"gradle.properties", "org.gradle.jvmargs=-Xmx2g\nsigning.password=«abc»\nsigning.keyId=24875D73\nossrhToken : «ab\\\n   cd»\nsystemProp.http.proxyPassword «x»\n# mavenPassword=«x»\ngpr.key=«x»\ngpr.user=me\n"},
	{".git/config", "[core]\n\trepositoryformatversion = 0\n[remote \"origin\"]\n\turl = https://me«:" + someSecret + "»@github.com/o/r.git\n\tpushurl = ssh://git@github.com/o/r\n\turl = git@github.com:o/r\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n" +
		"[http \"https://h/\"] extraheader = «AUTHORIZATION: basic eA==»\n[http]\n\textraHeader = «\"AUTHORIZATION: \\\n  bearer x\"»\n\tproxy = http://p«:q»@h\n" +
		"[credential]\n\thelper = «\"!f() { echo username=x; echo password=y; }; f\"»\n\thelper = store --file ~/x\n\thelper = !gh auth git-credential\n[url \"https://x«:y»@h/]\"] insteadOf = h:\n[sendemail] smtpPass = «p»\n" +
		"[remote \"t\"]\n\turl = https://«0d599f0ec05c3bda8c3b8a68c32a1b47@»h/\n\turl = https://«abcdefghij:x-oauth-basic@»h/\n\turl = https://«:p@»h/\n\turl = https://h/@x:y\n[alias]\n\tx = \"!echo a:b@c\"\n[user]\n\temail = a@b\n[http \"https://h/]\"] extraheader = «A: https://u:p@h/»\n"},
	{".git/modules/a/config", "[remote \"o\"]\n\turl=https://u«:p»@h/\n"},
	{"sub/.git/worktrees/w/config.worktree", "[http]\nextraheader=«A: b»\n"},
	{"bare.git/config", "[remote \"o\"]\n\turl=https://u«:p»@h/\n"},
	{".git/FETCH_HEAD", "0123\tnot-for-merge\tbranch 'x' of https://u«:p»@h/r\n"},
	{".git/logs/HEAD", "0 1 a <a@b> 1 +0000\tclone: from https://u«:p»@h/r\n"},
	{".gitmodules", "[submodule \"x\"]\n\tpath = x\n\turl = https://u«:p»@h/x\n"},
	{".hg/hgrc", "[paths]\ndefault = https://u«:p»@h/\n[auth]\nx.prefix = h\nx.username = u\nx.password = «abc»\n"},
	{".curlrc", "user = «\"me:pw\"»\n--proxy-user «a:b»\nheader = «\"Authorization: Bearer x\"»\nheader = \"Accept: text/html\"\nsilent\n"},
	{".wgetrc", "http_password = «abc»\nuser = me\nheader = «X-Token: y»\n"},
}

// split gives the two texts of a case and how many fields go.
func (c scrubCase) split() (before, after string, n int) {
	for rest := c.text; ; n++ {
		plain, marked, ok := strings.Cut(rest, "«")
		before, after = before+plain, after+plain
		if !ok {
			return before, after, n
		}
		var field string
		field, rest, _ = strings.Cut(marked, "»")
		old, now, _ := strings.Cut(field, "|")
		before, after = before+old, after+now
	}
}

// Secret fields go, everything else stays byte by byte, and no value is named.
func TestF21FieldsAreScrubbed(t *testing.T) {
	used := map[*fieldRow]bool{}
	for _, c := range scrubCases {
		t.Run(c.path, func(t *testing.T) {
			before, after, n := c.split()
			if d := Decide(c.path, false, false, nil); d.Action != Scrub {
				t.Fatalf("Decide = %v", d)
			}
			used[fieldsOf(components(c.path))] = true
			out, fields, ok := ScrubFields(c.path, []byte(before))
			if !ok || string(out) != after {
				t.Errorf("ok %v; got\n%s\nwant\n%s", ok, out, after)
			}
			if len(fields) != n {
				t.Errorf("%d fields, want %d: %q", len(fields), n, fields)
			}
			if s := fmt.Sprint(fields); strings.Contains(s, someSecret) || strings.Contains(s, "hunter") {
				t.Errorf("a value is named: %s", s)
			}
			// Once is enough.
			again, fields, ok := ScrubFields(c.path, out)
			if !ok || len(fields) > 0 || !bytes.Equal(again, out) {
				t.Errorf("second time: %v %q %s", ok, fields, again)
			}
		})
	}
	for i := range fieldRows {
		row := &fieldRows[i]
		if !used[row] {
			t.Errorf("no case for %s", row.patterns[0])
		}
		for _, p := range row.patterns {
			for _, f := range []string{p, "a/" + p, strings.ToUpper(p), p + "~", p + ".bak"} {
				if fieldsOf(components(f)) != row {
					t.Errorf("%s has another row", f)
				}
			}
			for _, f := range []string{p + "/", p + "x", "x" + p + ".go"} {
				if fieldsOf(components(f)) != nil {
					t.Errorf("%s has a row", f)
				}
			}
		}
	}
}

func TestScrubFieldsNamesLines(t *testing.T) {
	_, fields, ok := ScrubFields(".npmrc", []byte("a=b\n//h/:_authToken=x\n\nproxy=http://u:p@h\n"))
	if want := []string{"line 2: _authtoken", "line 4: password in a URL"}; !ok || !slices.Equal(fields, want) {
		t.Errorf("%v %q, want %q", ok, fields, want)
	}
}

// What can't be made clean stays out as a whole.
func TestF21ScrubFieldsRefuses(t *testing.T) {
	rnd := rand.New(rand.NewPCG(11, 12))
	token := "ghp_" + withCRC(randomOf(rnd, alnum, 30))
	for path, content := range map[string]string{
		"main.go":      "x",
		".npmrc":       "a=b\x00",
		"nuget.config": "\xff\xfe<\x00a\x00",
		".curlrc":      strings.Repeat("x", maxFieldLine+1),
		".pypirc":      strings.Repeat("#\n", maxFieldFile/2+1),
		".yarnrc":      "unknownField \"" + token + "\"\n",
	} {
		if out, fields, ok := ScrubFields(path, []byte(content)); ok || out != nil || fields != nil {
			t.Errorf("%s: %q %q %v", path, out, fields, ok)
		}
	}
	// The same token in a field is taken out.
	if out, _, ok := ScrubFields(".npmrc", []byte("//h/:_authToken="+token+"\n")); !ok || string(out) != "//h/:_authToken=\n" {
		t.Errorf("%v %q", ok, out)
	}
	if out, _, ok := ScrubFields(".git/config", []byte("url = https://"+token+"@github.com/x\n")); !ok || string(out) != "url = https://github.com/x\n" {
		t.Errorf("%v %q", ok, out)
	}
}

// No content makes scrubbing take much longer than reading.
func TestScrubFieldsHostileContentIsCheap(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for path, parts := range map[string][]string{
		".git/config":      {"\\\n", "a=\\\n", "://", "a://b@", "[\"", "helper=!", "token=\\\n"},
		".pypirc":          {"a=\n b", " a\n", "password=\n "},
		".yarnrc.yml":      {"a: \"", "npmAuthToken: ", "npmAuthToken:\n ", "npmAuthToken: |\n", "npmAuthToken: {"},
		".cargo/config":    {"{token=a,", "token=\"\"\"", "token", "a=\"\"\"", "token={", "token=''' "},
		"nuget.config":     {"<add \"", "<", "<add key=", "<password>", "<apikeys>", "<add key='password' value='x'>"},
		".m2/settings.xml": {"<password>${a}", "<password>", "<password>x<", "<password> "},
	} {
		for _, part := range parts {
			line := strings.Repeat(part, 8<<10/len(part)) + "\n"
			took := func(size int) time.Duration {
				content := []byte(strings.Repeat(line, size/len(line)))
				start := processorTime(t)
				ScrubFields(path, content)
				return processorTime(t) - start
			}
			quarter, whole := took(maxFieldFile/4), took(maxFieldFile)
			t.Logf("%s full of %q: %v, a quarter of it %v", path, part, whole, quarter)
			if whole > time.Second/4 && whole > 10*quarter {
				t.Errorf("%s full of %q: %v, but a quarter of it %v", path, part, whole, quarter)
			}
		}
	}
}

// processorTime is what the thread has used: others on a busy host don't count.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at); err != nil {
		t.Fatal(err)
	}
	return time.Duration(at.Nano())
}

// FuzzScrubFields: nothing panics, what is reported is what changed, and a
// clean file stays clean.
func FuzzScrubFields(f *testing.F) {
	for i, c := range scrubCases {
		before, _, _ := c.split()
		f.Add(uint8(i), []byte(before))
	}
	f.Fuzz(func(t *testing.T, row uint8, content []byte) {
		path := scrubCases[int(row)%len(scrubCases)].path
		out, fields, ok := ScrubFields(path, content)
		if !ok {
			return
		}
		if len(fields) == 0 && !bytes.Equal(out, content) {
			t.Fatalf("%s changed without a word: %q → %q", path, content, out)
		}
		if len(fields) > 0 && bytes.Equal(out, content) {
			t.Fatalf("%s: %q reported, nothing changed", path, fields)
		}
	})
}
