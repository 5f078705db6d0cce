package compose

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"example.com/cellmart/platform/cellkit"
)

// Compose merges a file over included ones, which compose.split.yaml needs, from
// this version on.
const wantMajor, wantMinor = 2, 24

func usage(format string, args ...any) error { return cellkit.Usage{Err: fmt.Errorf(format, args...)} }

// Engine says why Compose can't be used here, or nil.
func Engine(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := exec.LookPath("docker"); err != nil {
		return errors.New("docker is not installed")
	}
	if _, err := docker(ctx, "version", "--format", "{{.Server.Version}}"); err != nil {
		return fmt.Errorf("no Docker engine answers: %w", err)
	}
	version, err := docker(ctx, "compose", "version", "--short")
	if err != nil {
		return errors.New("docker has no compose command")
	}
	var major, minor int
	if _, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &major, &minor); err != nil || major < wantMajor || major == wantMajor && minor < wantMinor {
		return fmt.Errorf("version %s of Docker Compose is too old, %d.%d or later is needed", version, wantMajor, wantMinor)
	}
	return nil
}

// docker runs a docker command and gives what it prints, or the last line of what
// it complains about.
func docker(ctx context.Context, args ...string) (string, error) {
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = os.TempDir(), &out, &complaint // no compose.yaml may be found by accident
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(complaint.String()), "\n")
		return "", fmt.Errorf("docker %s: %w: %s", args[0], err, lines[len(lines)-1])
	}
	return strings.TrimSpace(out.String()), nil
}

// show runs a docker command whose progress people want to see.
func show(ctx context.Context, to io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = os.TempDir(), to, to
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("docker %s: %w", strings.Join(args[:min(2, len(args))], " "), err)
	}
	return nil
}

// Labels that Compose and the files here set.
const (
	labelProject   = "com.docker.compose.project"
	labelFolder    = "com.docker.compose.project.working_dir"
	labelService   = "com.docker.compose.service"
	labelFiles     = "com.docker.compose.project.config_files"
	labelVariables = "com.docker.compose.project.environment_file"
	labelZone      = "cellmart.zone"
	labelPart      = "cellmart.part"
)

// container is what inspect says of one.
type container struct {
	ID           string `json:"Id"`
	RestartCount int
	State        struct {
		Running   bool
		ExitCode  int
		Status    string
		StartedAt string
	}
	Config struct {
		Labels      map[string]string
		Healthcheck struct{ Test []string }
	}
	NetworkSettings struct {
		Ports    map[string][]struct{ HostIP, HostPort string }
		Networks map[string]json.RawMessage
	}
}

func (c *container) service() string { return c.Config.Labels[labelService] }

// url is where a port of the container is published.
func (c *container) url(port string) string {
	for _, at := range c.NetworkSettings.Ports[port+"/tcp"] {
		return "http://" + at.HostIP + ":" + at.HostPort
	}
	return ""
}

// containers lists those, ended ones too, that have all these labels.
func containers(ctx context.Context, labels ...string) ([]container, error) {
	args := []string{"ps", "-aq", "--no-trunc"}
	for _, l := range labels {
		args = append(args, "--filter", "label="+l)
	}
	ids, err := docker(ctx, args...)
	if err != nil || ids == "" {
		return nil, err
	}
	text, err := docker(ctx, append([]string{"inspect", "--type", "container"}, strings.Fields(ids)...)...)
	if err != nil {
		return nil, err
	}
	var all []container
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("docker inspect: %w", err)
	}
	return all, nil
}
