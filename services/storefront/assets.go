package storefront

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"path"
	"time"
)

// asset is a file of the shop. Its address has its version, so it's never asked
// for twice, and a new one is seen at once.
type asset struct {
	version string
	body    []byte
}

func readAssets() (map[string]asset, error) {
	entries, err := files.ReadDir("assets")
	if err != nil {
		return nil, err
	}
	out := map[string]asset{}
	for _, e := range entries {
		body, err := files.ReadFile("assets/" + e.Name())
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(body)
		out[e.Name()] = asset{version: hex.EncodeToString(sum[:6]), body: body}
	}
	return out, nil
}

func (s *Shop) assetPath(name string) string { return "/assets/" + s.assets[name].version + "/" + name }

// contentTypes are spelled out: what the system's own table says differs.
var contentTypes = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

// serveAsset answers with the file as it is here, also when another version is
// asked for (a gateway of another release made the page); that one isn't kept.
func (s *Shop) serveAsset(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	a, ok := s.assets[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	setHeaders(h)
	h.Set("Content-Type", contentTypes[path.Ext(name)])
	h.Set("Cache-Control", "no-cache")
	if r.PathValue("version") == a.version {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(a.body))
}
