package evidence

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
)

// WriteManifest writes what was asked into the run's folder, before anything
// is done.
func (m *Manager) WriteManifest(run *state.Run, p *policy.Result) error {
	b, err := json.MarshalIndent(map[string]any{
		"run": run.ID, "cell": run.Cell, "cell_name": run.CellName, "created": run.Created, "command": run.Command, "source": run.Source,
		"backend": run.Backend, "image": run.Image, "environment_names": append([]string{}, run.In.EnvNames...), "on_failure": run.In.OnFailure,
		"on_success": run.In.OnSuccess, "check": run.In.Check, "pins": append([]string{}, run.In.Pins...), "tty": run.TTY, "limits_asked": run.In.Asked, "policy_digest": run.Policy,
		"policy": json.RawMessage(p.Canonical()), "policy_origins": p.Origins, "pando": m.cfg.Version,
	}, "", "  ")
	if err != nil {
		return err
	}
	failpoint.Step("write a manifest")
	f, err := CreateRecord(run.Folder, "manifest.json")
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Close())
}

// ManifestPolicy is the policy of a run, as it was written down before the run
// began. It must be the one that the run's record names.
func ManifestPolicy(run *state.Run) (*policy.Result, error) {
	fail := func(err error) (*policy.Result, error) {
		return nil, cell.Errorf(cell.Corrupt, "evidence.ManifestPolicy", "see what its receipt says: pando receipt show "+run.ID, "cannot read the policy of run %s: %w", run.ID, err)
	}
	f, err := OpenRecord(run.Folder, "manifest.json")
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return fail(err)
	}
	var m struct {
		Policy  json.RawMessage `json:"policy"`
		Origins policy.Origins  `json:"policy_origins"`
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return fail(err)
	}
	var eff policy.Effective
	if err := json.Unmarshal(m.Policy, &eff); err != nil {
		return fail(err)
	}
	if d := eff.Digest().String(); d != run.Policy {
		return fail(fmt.Errorf("it has the digest %s, and the record says %s", d, run.Policy))
	}
	return &policy.Result{Effective: eff, Origins: m.Origins}, nil
}
