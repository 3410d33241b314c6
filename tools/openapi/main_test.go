package main

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/daemon"
)

// The files in the repository are what the types say now.
func TestGenerated(t *testing.T) {
	files, err := render("../..")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(got), string(want)); diff != "" {
			t.Errorf("%s is out of date, run make generate (-file +types):\n%s", name, diff)
		}
	}
}

// Every field of the API says what it means.
func TestEveryFieldIsDocumented(t *testing.T) {
	types, err := readTypes("../../api", daemon.Routes)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range types {
		if x.Does == "" {
			t.Errorf("%s has no comment", x.Name)
		}
		for _, f := range x.Fields {
			if f.Does == "" {
				t.Errorf("%s.%s has no comment", x.Name, f.Name)
			}
		}
	}
}
