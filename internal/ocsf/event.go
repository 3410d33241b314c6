package ocsf

// An Event is an event of any of the classes that the mapping uses. The fields
// are those of the schema, under its names.
type Event struct {
	// Classification.
	ActivityID   int    `json:"activity_id"`
	ActivityName string `json:"activity_name"`
	CategoryUID  int    `json:"category_uid"`
	CategoryName string `json:"category_name"`
	ClassUID     int    `json:"class_uid"`
	ClassName    string `json:"class_name"`
	TypeUID      int    `json:"type_uid"` // class_uid * 100 + activity_id
	TypeName     string `json:"type_name"`
	SeverityID   int    `json:"severity_id"`
	Severity     string `json:"severity"`

	Time     int64    `json:"time"` // milliseconds since 1970
	Metadata Metadata `json:"metadata"`
	Message  string   `json:"message,omitempty"`
	// Of an aggregate: how many, and between when and when.
	Count     int64 `json:"count,omitempty"`
	StartTime int64 `json:"start_time,omitempty"`
	EndTime   int64 `json:"end_time,omitempty"`

	// What came of it.
	StatusID     *int   `json:"status_id,omitempty"`
	Status       string `json:"status,omitempty"`
	StatusCode   string `json:"status_code,omitempty"`
	StatusDetail string `json:"status_detail,omitempty"`

	// Profile security_control: what was decided, and by what.
	ActionID      *int          `json:"action_id,omitempty"`
	Action        string        `json:"action,omitempty"`
	DispositionID *int          `json:"disposition_id,omitempty"`
	Disposition   string        `json:"disposition,omitempty"`
	Policy        *Policy       `json:"policy,omitempty"`
	FirewallRule  *FirewallRule `json:"firewall_rule,omitempty"`
	IsAlert       bool          `json:"is_alert,omitempty"`

	// Profile host: the device and the actor.
	Device *Device `json:"device,omitempty"`
	Actor  *Actor  `json:"actor,omitempty"`

	// Process Activity.
	Process      *Process `json:"process,omitempty"`
	ExitCode     *int     `json:"exit_code,omitempty"`
	LaunchTypeID int      `json:"launch_type_id,omitempty"`
	LaunchType   string   `json:"launch_type,omitempty"`

	// The network classes.
	SrcEndpoint    *Endpoint   `json:"src_endpoint,omitempty"`
	DstEndpoint    *Endpoint   `json:"dst_endpoint,omitempty"`
	ConnectionInfo *Connection `json:"connection_info,omitempty"`
	Traffic        *Traffic    `json:"traffic,omitempty"`
	AppProtocol    string      `json:"app_protocol_name,omitempty"`

	// HTTP Activity.
	HTTPRequest  *HTTPRequest  `json:"http_request,omitempty"`
	HTTPResponse *HTTPResponse `json:"http_response,omitempty"`

	// DNS Activity.
	Query   *DNSQuery `json:"query,omitempty"`
	RCodeID *int      `json:"rcode_id,omitempty"`
	RCode   string    `json:"rcode,omitempty"`

	// SSH Activity.
	AuthTypeID int    `json:"auth_type_id,omitempty"`
	AuthType   string `json:"auth_type,omitempty"`

	// Detection Finding.
	FindingInfo *FindingInfo `json:"finding_info,omitempty"`

	Unmapped map[string]any `json:"unmapped,omitempty"`
}

// Metadata names the reporting product, and the version of the schema.
type Metadata struct {
	Version        string   `json:"version"`
	Product        Product  `json:"product"`
	Profiles       []string `json:"profiles"`
	UID            string   `json:"uid"`                       // RUN/SEQ, and /finding for a finding
	Sequence       int64    `json:"sequence"`                  // of our event in its run
	EventCode      string   `json:"event_code"`                // our kind
	CorrelationUID string   `json:"correlation_uid,omitempty"` // the connection, or the request
	LogName        string   `json:"log_name"`
	Labels         []string `json:"labels,omitempty"`
}

// Product is pando.
type Product struct {
	Name       string `json:"name"`
	VendorName string `json:"vendor_name"`
	Version    string `json:"version,omitempty"`
}

// Policy is what governed the cell.
type Policy struct {
	UID       string `json:"uid"` // digest of its canonical form
	Name      string `json:"name,omitempty"`
	IsApplied bool   `json:"is_applied"`
}

// FirewallRule is the rule that decided.
type FirewallRule struct {
	UID  string `json:"uid"`            // "deny 1"
	Name string `json:"name,omitempty"` // where it stands: "pando.policy.yaml:31"
	Desc string `json:"desc,omitempty"` // the reason
}

// Device is the host that cells run on.
type Device struct {
	Hostname string `json:"hostname,omitempty"`
	TypeID   int    `json:"type_id"`
	Type     string `json:"type"`
	OS       *OS    `json:"os,omitempty"`
}

// OS is an operating system.
type OS struct {
	Name   string `json:"name"`
	TypeID int    `json:"type_id"`
	Type   string `json:"type"`
}

// Actor is the process or user that acted: the command of the run, for a user.
type Actor struct {
	Process *Process `json:"process,omitempty"`
	User    *User    `json:"user,omitempty"`
}

// User is the owner of a cell.
type User struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
}

// Process is a process in a cell.
type Process struct {
	UID            string     `json:"uid,omitempty"` // the run, or the request to start it
	PID            int        `json:"pid,omitempty"` // as the keeper sees it
	Name           string     `json:"name,omitempty"`
	Path           string     `json:"path,omitempty"`
	CmdLine        string     `json:"cmd_line,omitempty"` // redacted
	CreatedTime    int64      `json:"created_time,omitempty"`
	TerminatedTime int64      `json:"terminated_time,omitempty"`
	User           *User      `json:"user,omitempty"`
	Container      *Container `json:"container,omitempty"`
}

// Container is a cell.
type Container struct {
	UID  string `json:"uid"`
	Name string `json:"name,omitempty"`
}

// Endpoint is one end of a connection.
type Endpoint struct {
	Hostname  string     `json:"hostname,omitempty"`
	IP        string     `json:"ip,omitempty"`
	Port      *int       `json:"port,omitempty"`
	Name      string     `json:"name,omitempty"`
	UID       string     `json:"uid,omitempty"`
	Container *Container `json:"container,omitempty"`
}

// Connection is what is known of a connection.
type Connection struct {
	UID          string `json:"uid,omitempty"`
	DirectionID  int    `json:"direction_id"`
	Direction    string `json:"direction"`
	ProtocolName string `json:"protocol_name,omitempty"`
	ProtocolNum  int    `json:"protocol_num,omitempty"`
}

// Traffic is what went over a connection, in bytes.
type Traffic struct {
	Bytes    int64 `json:"bytes"`
	BytesIn  int64 `json:"bytes_in"`
	BytesOut int64 `json:"bytes_out"`
}

// HTTPRequest is an HTTP request.
type HTTPRequest struct {
	Method  string `json:"http_method,omitempty"`
	URL     *URL   `json:"url,omitempty"`
	Version string `json:"version,omitempty"`
	UID     string `json:"uid,omitempty"`
}

// HTTPResponse is the answer to one.
type HTTPResponse struct {
	Code    int   `json:"code"`
	Latency int64 `json:"latency,omitempty"` // milliseconds
}

// URL is what an HTTP request asks for. The query is not recorded.
type URL struct {
	Scheme   string `json:"scheme,omitempty"`
	Hostname string `json:"hostname,omitempty"`
	Port     *int   `json:"port,omitempty"`
	Path     string `json:"path"`
	String   string `json:"url_string"`
}

// DNSQuery is a question for the addresses of a name.
type DNSQuery struct {
	Hostname string `json:"hostname"`
	Class    string `json:"class,omitempty"`
}

// FindingInfo is what was found.
type FindingInfo struct {
	UID         string   `json:"uid"`
	Title       string   `json:"title"`
	Desc        string   `json:"desc,omitempty"`
	Types       []string `json:"types,omitempty"`
	CreatedTime int64    `json:"created_time"`
	DataSources []string `json:"data_sources,omitempty"`
}
