package oci

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
)

// The media types that are understood. Docker's are OCI's under older names.
const (
	typeIndex          = "application/vnd.oci.image.index.v1+json"
	typeManifest       = "application/vnd.oci.image.manifest.v1+json"
	typeConfig         = "application/vnd.oci.image.config.v1+json"
	typeLayer          = "application/vnd.oci.image.layer.v1.tar"
	typeDockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
	typeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	typeDockerConfig   = "application/vnd.docker.container.image.v1+json"
	typeDockerLayer    = "application/vnd.docker.image.rootfs.diff.tar"
	typeAnyLayer       = "" // of archives without manifests: what it is, its first bytes say
)

// compressions says, by media type, how layers are compressed.
var compressions = map[string]string{
	typeLayer: "none", typeLayer + "+gzip": "gzip", typeLayer + "+zstd": "zstd",
	typeDockerLayer: "none", typeDockerLayer + ".gzip": "gzip", typeDockerLayer + ".zstd": "zstd",
	typeAnyLayer: "any",
}

// A descriptor names a blob (OCI image-spec, descriptor.md). Other members
// don't change what is unpacked.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      cell.Digest       `json:"digest"`
	Size        int64             `json:"size"`
	URLs        []string          `json:"urls"`
	Platform    *platform         `json:"platform"`
	Annotations map[string]string `json:"annotations"`

	file string // in an archive without manifests: where it is; its digest is not known
}

type platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant"`
}

func (p platform) String() string {
	return strings.TrimSuffix(p.OS+"/"+p.Architecture+"/"+p.Variant, "/")
}

// manifest is a manifest or an index: which of them, its media type says.
type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        *descriptor  `json:"config"`
	Layers        []descriptor `json:"layers"`
	Manifests     []descriptor `json:"manifests"`
	FSLayers      []any        `json:"fsLayers"` // Docker's first schema
}

// config is what an image says about itself (image-spec, config.md).
type config struct {
	platform
	Created time.Time `json:"created"`
	Config  struct {
		User       string   `json:"User"`
		Env        []string `json:"Env"`
		WorkingDir string   `json:"WorkingDir"`
		Shell      []string `json:"Shell"`
		OnBuild    []string `json:"OnBuild"`

		Entrypoint   []string                   `json:"Entrypoint"`
		Cmd          []string                   `json:"Cmd"`
		ExposedPorts map[string]json.RawMessage `json:"ExposedPorts"`
		Volumes      map[string]json.RawMessage `json:"Volumes"`
		StopSignal   string                     `json:"StopSignal"`
		Healthcheck  struct {
			Test []string `json:"Test"`
		} `json:"Healthcheck"` // Docker's; OCI's has none
	} `json:"config"`
	RootFS struct {
		Type    string        `json:"type"`
		DiffIDs []cell.Digest `json:"diff_ids"`
	} `json:"rootfs"`
}

// The bounds of what describes an image, in bytes and layers.
const (
	maxManifest = 4 << 20
	maxConfig   = 8 << 20
	maxLayers   = 256
	maxValues   = 1 << 16 // of JSON
)

// unmarshal decodes JSON of an image.
func unmarshal(b []byte, what string, to any) error {
	if err := bound.Values(b, what, maxValues); err != nil {
		return err
	}
	return json.Unmarshal(b, to)
}

func corrupt(format string, args ...any) error {
	return cell.Errorf(cell.Corrupt, "oci.Pull", "pull it again, or from somewhere else", format, args...)
}

func unsupported(format string, args ...any) error {
	return cell.Errorf(cell.Unsupported, "oci.Pull", "use another image, or another version of it", format, args...)
}

// readManifest parses a manifest or an index. told is the media type from its source; ""
// for none.
func readManifest(b []byte, told string) (m manifest, err error) {
	if err := unmarshal(b, "a manifest", &m); err != nil {
		return m, corrupt("cannot read a manifest: %w", err)
	}
	told, _, _ = strings.Cut(told, ";")
	kind := m.MediaType
	if kind == "" {
		kind = strings.TrimSpace(told)
	}
	if len(m.FSLayers) > 0 || m.SchemaVersion == 1 {
		return m, unsupported("cannot use a manifest of Docker's first schema: what it names can't be verified")
	}
	// What could be read as either is neither: it would be verified as one
	// thing and used as another.
	isIndex, isManifest := len(m.Manifests) > 0, m.Config != nil || len(m.Layers) > 0
	if isIndex && isManifest {
		return m, corrupt("cannot read a manifest: it is an index, too")
	}
	if kind == "" || kind == "application/json" || kind == "application/octet-stream" {
		if kind = typeManifest; isIndex {
			kind = typeIndex
		}
	}
	switch kind {
	case typeIndex, typeDockerIndex:
		if isManifest {
			return m, corrupt("cannot read an index: it has layers")
		}
	case typeManifest, typeDockerManifest:
		if isIndex {
			return m, corrupt("cannot read a manifest: it is an index")
		}
		if m.Config == nil {
			return m, corrupt("cannot read a manifest: it names no config")
		}
	default:
		return m, unsupported("cannot use a manifest of type %q", cell.Clip(kind))
	}
	m.MediaType = kind
	return m, nil
}

func (m *manifest) isIndex() bool { return m.MediaType == typeIndex || m.MediaType == typeDockerIndex }

// choose returns the manifest of an index for this host.
func (m *manifest) choose() (descriptor, error) {
	var offered []string
	for _, d := range m.Manifests {
		if d.MediaType != typeManifest && d.MediaType != typeDockerManifest && d.MediaType != typeIndex && d.MediaType != typeDockerIndex {
			continue
		}
		if d.Platform == nil { // an index of one image, as layouts have
			if len(m.Manifests) == 1 {
				return d, nil
			}
			continue
		}
		if d.Platform.OS == "linux" && d.Platform.Architecture == runtime.GOARCH {
			return d, nil
		}
		if d.Platform.OS != "unknown" {
			offered = append(offered, d.Platform.String())
		}
	}
	return descriptor{}, unsupported("cannot use this image: it is for %s, not for linux/%s", orNone(strings.Join(offered, ", ")), runtime.GOARCH)
}

func orNone(s string) string {
	if s == "" {
		return "no platform at all"
	}
	return s
}

// check refuses manifests that this package would not unpack.
func (m *manifest) check(lim Limits) error {
	if t := m.Config.MediaType; t != typeConfig && t != typeDockerConfig {
		return unsupported("cannot use this image: its config is of type %q; it is no root file system", cell.Clip(t))
	}
	if m.Config.Size < 0 || m.Config.Size > maxConfig {
		return corrupt("cannot read the config: it has %d bytes", m.Config.Size)
	}
	if len(m.Layers) > maxLayers {
		return unsupported("cannot use this image: it has %d layers, at most %d are allowed", len(m.Layers), maxLayers)
	}
	for _, l := range m.Layers {
		if err := l.check(lim); err != nil {
			return err
		}
	}
	return nil
}

func (d *descriptor) check(lim Limits) error {
	if _, ok := compressions[d.MediaType]; !ok || d.MediaType == typeAnyLayer && d.file == "" {
		return unsupported("cannot use this image: layer %s is of type %q", d.short(), cell.Clip(d.MediaType))
	}
	if len(d.URLs) > 0 {
		return unsupported("cannot use this image: layer %s is to be fetched from somewhere else", d.short())
	}
	if d.Digest.IsZero() && d.file == "" {
		return corrupt("cannot use this image: a layer has no digest")
	}
	if d.Size < 0 || d.Size > lim.Bytes {
		return tooMuch("layer %s has %d bytes, at most %d are allowed", d.short(), d.Size, lim.Bytes)
	}
	return nil
}

func (d *descriptor) short() string {
	if d.file != "" {
		return cell.Clip(d.file)
	}
	return d.Digest.Short()
}

// readConfig parses and checks a config; layers is how many the manifest has.
func readConfig(b []byte, layers int) (c config, err error) {
	if err := unmarshal(b, "a config", &c); err != nil {
		return c, corrupt("cannot read the config: %w", err)
	}
	if c.OS != "" && c.OS != "linux" || c.Architecture != "" && c.Architecture != runtime.GOARCH {
		return c, unsupported("cannot use this image: it is for %s, not for linux/%s", c.platform, runtime.GOARCH)
	}
	if c.RootFS.Type != "layers" {
		return c, unsupported("cannot use this image: its root file system is of type %q", cell.Clip(c.RootFS.Type))
	}
	if len(c.RootFS.DiffIDs) != layers {
		return c, corrupt("cannot use this image: its manifest has %d layers, its config %d", layers, len(c.RootFS.DiffIDs))
	}
	for i, d := range c.RootFS.DiffIDs {
		if d.IsZero() {
			return c, corrupt("cannot use this image: layer %d has no digest in the config", i+1)
		}
	}
	return c, nil
}

// verified checks a small blob against what named it.
func verified(b []byte, d descriptor) error {
	if int64(len(b)) != d.Size {
		return corrupt("cannot use %s: it has %d bytes instead of %d", d.short(), len(b), d.Size)
	}
	if got := cell.Sum(b); got != d.Digest {
		return corrupt("cannot use %s: its content is %s", d.Digest, got)
	}
	return nil
}

func tooMuch(format string, args ...any) error {
	return cell.Errorf(cell.Denied, "oci.Pull", "use a smaller image", "cannot unpack this image: %w", fmt.Errorf(format, args...))
}
