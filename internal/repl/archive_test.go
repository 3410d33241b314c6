package repl

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/testenv"
)

const (
	javaFolder   = "java/pando"
	javaSources  = "META-INF/sources"  // of the archive: the digest of what it was made from
	javaCompiler = "META-INF/compiler" // and what made it
)

// javaManifest is that of the archive. What is opened is this: java.io, for the
// socket that is descriptor 3; the others, for generators and variables that
// have to be made new in a copy.
const javaManifest = "Manifest-Version: 1.0\nMain-Class: pando.Boot\n" +
	"Add-Opens: java.base/java.io java.base/java.lang java.base/java.util\n  java.base/java.util.concurrent\n\n"

// TestJavaArchive holds that the archive is made of the sources beside it.
// PANDO_UPDATE=1 makes it anew, with Debian's openjdk-17-jdk-headless.
func TestJavaArchive(t *testing.T) {
	sum := sha256.New()
	names, _ := filepath.Glob(javaFolder + "/*.java")
	for _, name := range names {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(sum, "%s %d\n%s", filepath.Base(name), len(src), src)
	}
	sources := fmt.Sprintf("%x\n", sum.Sum(nil))
	if os.Getenv("PANDO_UPDATE") != "" {
		classes := compileJava(t)
		classes[javaSources], classes[javaCompiler] = []byte(sources), []byte(compiler())
		if err := os.WriteFile("java/bridge.jar", archive(t, classes), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	held := members(t, javaArchive)
	if string(held[javaSources]) != sources {
		t.Fatal("java/bridge.jar was not made of java/pando/*.java: PANDO_UPDATE=1 go test ./internal/repl -run TestJavaArchive")
	}
	if compiler() != string(held[javaCompiler]) {
		return // another would make others; that the sources are the same is known
	}
	classes := compileJava(t)
	for name, data := range classes {
		if !bytes.Equal(held[name], data) {
			t.Errorf("%s of java/bridge.jar is not what the compiler makes of the sources", name)
		}
		delete(held, name)
	}
	for name := range held {
		if strings.HasSuffix(name, ".class") {
			t.Errorf("java/bridge.jar has %s, of which there is no source", name)
		}
	}
}

// compiler is the host's, such as "javac 17"; "" if there is none.
func compiler() string {
	out, _ := exec.Command("javac", "-version").Output()
	name, _, _ := strings.Cut(strings.TrimSpace(string(out)), ".")
	return name
}

// compileJava returns the classes, by their names in the archive.
func compileJava(t *testing.T) map[string][]byte {
	t.Helper()
	javac, dir := testenv.Program(t, "javac"), t.TempDir()
	rest, _ := filepath.Glob(javaFolder + "/*.java")
	boot := javaFolder + "/Boot.java"
	rest = slices.DeleteFunc(rest, func(n string) bool { return n == boot })
	// Boot says to a Java that is too old that it is. sun.misc is no part of a
	// release that can be named, so the others say which by two words.
	for _, args := range [][]string{{"--release", "8", boot}, append([]string{"-source", "11", "-target", "11", "-cp", dir}, rest...)} {
		cmd := exec.Command(javac, append([]string{"-nowarn", "-Xlint:-options", "-g:source,lines", "-d", dir}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
	}
	classes := map[string][]byte{}
	files, _ := filepath.Glob(dir + "/pando/*.class")
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		classes["pando/"+filepath.Base(f)] = data
	}
	return classes
}

func archive(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	files["META-INF/MANIFEST.MF"] = []byte(javaManifest)
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate, Modified: time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)})
		if err == nil {
			_, err = w.Write(files[name])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func members(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, f := range z.File {
		r, err := f.Open()
		if err == nil {
			out[f.Name], err = io.ReadAll(r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestFile(t *testing.T) {
	f, err := File([]byte("content"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := io.ReadAll(f); err != nil || len(b) > 0 {
		t.Errorf("it is not at its end: %q, %v", b, err)
	}
	again := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if b, err := os.ReadFile(again); err != nil || string(b) != "content" {
		t.Errorf("opened again it is %q, %v", b, err)
	}
	if err := os.WriteFile(again, []byte("another"), 0); err == nil {
		t.Error("it can be changed")
	}
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		t.Error("it can be written to")
	}
}
