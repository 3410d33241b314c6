package policy

import (
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

// homeOf merges texts of policies, each in its layer.
func homeOf(t *testing.T, layers map[string]string) (Result, error) {
	t.Helper()
	var list []Layer
	for _, name := range []string{LayerHost, LayerUser, LayerProject, LayerRun} {
		if text := layers[name]; text != "" {
			f, err := ParseFile(name+".yaml", []byte("version: 1\nhome:\n"+text))
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, Layer{name, f})
		}
	}
	return MergeLayers(Defaults(Host{}), list, Flags{})
}

// A policy of a repository names no file of the host, wherever in the section; texts it may have.
func TestHomeOfARepositoryNamesNothing(t *testing.T) {
	for _, text := range []string{
		"  instructions: {claude: {file: /etc/passwd}}\n",
		"  known_hosts: ~/.ssh/known_hosts\n",
		"  gh: /home/u/.config/gh/config.yml\n",
		"  files: [{source: ~/.netrc, target: x, secret: true}]\n",
	} {
		if _, err := homeOf(t, map[string]string{LayerProject: text}); cell.KindOf(err) != cell.Denied || !strings.Contains(err.Error(), "project.yaml:") {
			t.Errorf("%s: %v", text, err)
		}
		if _, err := homeOf(t, map[string]string{LayerUser: text}); err != nil {
			t.Errorf("of the user, %s: %v", text, err)
		}
	}
	r, err := homeOf(t, map[string]string{LayerProject: "  instructions: {common: Be brief.}\n  git: {name: A, email: a@b}\n"})
	if err != nil || r.Home.Instructions[0].Text != "Be brief." || r.Home.Git.Name != "A" {
		t.Errorf("%+v, %v", r.Home, err)
	}
}

// Texts and files add up; of the rest the lowest counts, and shows where it is from.
func TestHomeOfLayers(t *testing.T) {
	r, err := homeOf(t, map[string]string{
		LayerUser: "  instructions: {common: first}\n  git: {name: A, email: a@b}\n  files:\n    - {source: /a, target: f}\n    - {source: /a, target: b}\n",
		LayerRun:  "  instructions: {common: second}\n  git: {name: B, email: b@b}\n  files: [{source: /b, target: f, secret: true}]\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Home.Instructions) != 2 || r.Home.Instructions[0].Text != "first" || r.Home.Git.Name != "B" || len(r.Home.Files) != 2 {
		t.Errorf("%+v", r.Home)
	}
	var shown []string
	for _, s := range r.Show(r.Origins) {
		if s.Section == "home" {
			shown = append(shown, s.Text+" ("+s.Origin+")")
		}
	}
	if got, want := strings.Join(shown, "\n"), "instructions for every agent (user.yaml:3, run.yaml:3)\ncommits are of B <b@b> (run.yaml:4)\nfile /a at ~/b (user.yaml:7)\nfile /b at ~/f, a secret (run.yaml:5)"; got != want {
		t.Errorf("shown is\n%s\nnot\n%s", got, want)
	}
	if d := r.Downgrades(); len(d) != 1 || d[0] != "secret ~/f is inside the cell" {
		t.Errorf("weaker is %q", d)
	}
	same, err := homeOf(t, map[string]string{LayerUser: "  files:\n    - {source: /a, target: b}\n    - {source: /a, target: a}\n"})
	other, err2 := homeOf(t, map[string]string{LayerUser: "  files:\n    - {source: /a, target: a}\n    - {source: /a, target: b}\n"})
	if err != nil || err2 != nil || same.Digest() != other.Digest() {
		t.Errorf("the order of files counts: %v, %v", err, err2)
	}
}

func TestHomePaths(t *testing.T) {
	for _, text := range []string{
		"  known_hosts: hosts\n", "  gh: ../gh\n", "  instructions: {claude: {file: x}}\n", "  instructions: {cladue: x}\n", "  instructions: {claude: {}}\n",
		"  files: [{source: /a}]\n", "  files: [{target: a}]\n", "  files: [{source: /a, target: /a}]\n", "  files: [{source: /a, target: ../a}]\n", "  files: [{source: /a, target: .config/pando/home.json}]\n",
		"  git: {name: A}\n", "  git: {name: \"A <x>\", email: a@b}\n",
	} {
		if _, err := ParseFile("f", []byte("version: 1\nhome:\n"+text)); cell.KindOf(err) != cell.Invalid {
			t.Errorf("%s: %v", text, err)
		}
	}
}
