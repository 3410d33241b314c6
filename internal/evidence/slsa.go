package evidence

import (
	"bytes"
	"encoding/hex"
	"io"
	"slices"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
)

// What a view of a run as provenance says of itself: https://slsa.dev/spec/v1.0/provenance.
const (
	slsaPredicate = "https://slsa.dev/provenance/v1"
	slsaBuildType = "https://pando.dev/slsa/run/v1" // docs/format.md
	slsaBuilder   = "https://pando.dev/installation/"
)

type slsaProvenance struct {
	BuildDefinition struct {
		BuildType          string         `json:"buildType"`
		ExternalParameters slsaParameters `json:"externalParameters"`
		Resolved           []slsaResource `json:"resolvedDependencies,omitempty"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID      string            `json:"id"`
			Version map[string]string `json:"version"`
		} `json:"builder"`
		Metadata struct {
			InvocationID string    `json:"invocationId"`
			StartedOn    time.Time `json:"startedOn,omitzero"`
			FinishedOn   time.Time `json:"finishedOn,omitzero"`
		} `json:"metadata"`
		Byproducts []slsaResource `json:"byproducts"`
	} `json:"runDetails"`
}

type slsaParameters struct {
	Command []string `json:"command"`
	Source  string   `json:"source"`
	Image   string   `json:"image"`
	Policy  string   `json:"policyDigest"`
	Backend string   `json:"backend"`
}

type slsaResource struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

func slsaSum(name, digest string) slsaResource {
	d, _ := cell.ParseDigest(digest)
	return slsaResource{name, map[string]string{"sha256": hex.EncodeToString(d[:])}}
}

// slsa tells a run that left a patch as provenance of that patch, signed by the key of receipts. It says nothing that the
// receipt does not.
func (m *Manager) slsa(entry receipt.Entry, s receipt.Statement, p *runPredicate) ([]byte, error) {
	var v slsaProvenance
	def, details := &v.BuildDefinition, &v.RunDetails
	def.BuildType = slsaBuildType
	def.ExternalParameters = slsaParameters{p.Command, p.Source.Path, p.Image, p.Policy.Digest, p.Backend}
	if p.Before != nil && p.Before.TreeDigest != "" {
		def.Resolved = append(def.Resolved, slsaSum("workspace before", p.Before.TreeDigest))
	}
	if p.ImageID != "" {
		def.Resolved = append(def.Resolved, slsaSum("image", p.ImageID))
	}
	details.Builder.ID = slsaBuilder + m.cfg.Ledger.Keys().Current().ID()
	details.Builder.Version = map[string]string{"pando": p.Pando}
	details.Metadata.InvocationID, details.Metadata.StartedOn, details.Metadata.FinishedOn = p.Run, p.Started.UTC(), p.Ended.UTC()
	details.Byproducts = []slsaResource{slsaSum("receipt", entry.ID.String())}
	if p.After != nil && p.After.TreeDigest != "" {
		details.Byproducts = append(details.Byproducts, slsaSum("workspace after", p.After.TreeDigest))
	}
	at := slices.IndexFunc(s.Subject, func(s receipt.Subject) bool { return s.Name == patchFile })
	return m.cfg.Ledger.Attest(slsaPredicate, s.Subject[at:at+1], v)
}

// addSLSA adds the view of a run with a patch. It is made again when it is written: a bundle may have many.
func (b *Bundle) addSLSA(entry receipt.Entry, s receipt.Statement, p *runPredicate) error {
	if !slices.ContainsFunc(s.Subject, func(s receipt.Subject) bool { return s.Name == patchFile }) {
		return nil
	}
	text, err := b.m.slsa(entry, s, p)
	if err != nil {
		return err
	}
	index := entry.Index
	b.files = append(b.files, receipt.ArchiveFile{Name: "slsa/" + p.Run + ".json", Size: int64(len(text)), Open: func() (io.ReadCloser, error) {
		entry, err := b.m.cfg.Ledger.Entry(index)
		if err != nil {
			return nil, err
		}
		s, err := entry.Statement()
		if err != nil {
			return nil, err
		}
		var p runPredicate
		if err := unmarshal(s.Predicate, &p); err != nil {
			return nil, err
		}
		text, err := b.m.slsa(entry, s, &p)
		return io.NopCloser(bytes.NewReader(text)), err
	}})
	return nil
}
