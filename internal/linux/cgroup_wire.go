package linux

// CgroupPlace says where a cgroup is, for another process that can't find out
// by itself (a keeper in its own user namespace).
type CgroupPlace struct {
	Name string      `json:"name"`
	Dirs []CgroupDir `json:"dirs"`
}

// CgroupDir is the cgroup in one hierarchy.
type CgroupDir struct {
	Path        string   `json:"path"`
	V2          bool     `json:"v2"`
	Controllers []string `json:"controllers"`
}

// Place describes the cgroup.
func (c *Cgroup) Place() CgroupPlace {
	p := CgroupPlace{Name: c.Name}
	for _, d := range c.dirs {
		p.Dirs = append(p.Dirs, CgroupDir{d.path, d.tree.v2, d.tree.controllers})
	}
	return p
}

// Cgroup is the cgroup at a place, to be measured, frozen and entered as far
// as the caller's rights go.
func (p CgroupPlace) Cgroup() *Cgroup {
	c := &Cgroup{Name: p.Name}
	for _, d := range p.Dirs {
		c.dirs = append(c.dirs, cgroupDir{&cgroupTree{v2: d.V2, controllers: d.Controllers}, d.Path})
	}
	return c
}
