package ratelimit_test

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/krow/ratelimit"
)

// The next handler gets a copy of the request, for the sake of its context. What it puts there is found in
// the original as well: the form, whose temporary files net/http removes, and the pattern of a mux.
func TestCopyOfTheRequest(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, memoryStore(t), ratelimit.Config{Policies: []ratelimit.Policy{{Name: "default", Limit: long(10)}}})
	var file, pattern string
	mux := http.NewServeMux()
	mux.HandleFunc("POST /upload", func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			t.Error(err)
			return
		}
		f, err := r.MultipartForm.File["file"][0].Open()
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		file = f.(*os.File).Name()
	})
	handler := limiter.Handler(mux)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r)
		pattern = r.Pattern
	}))
	defer server.Close()

	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", "file")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := part.Write(make([]byte, 11<<20)); err != nil { // more than net/http keeps in memory
		t.Fatal(err)
	}
	if err := form.Close(); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(server.URL+"/upload", form.FormDataContentType(), &body)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	server.Close() // waits for the end of the request, after which the files are removed
	if pattern != "POST /upload" {
		t.Errorf("the original's pattern is %q, want that of the mux", pattern)
	}
	if file == "" {
		t.Fatal("the upload did not go to a file")
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the temporary file is still there (error %v)", err)
		_ = os.Remove(file)
	}
}
