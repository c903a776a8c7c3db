// A classic script, for browsers load no module from a file: it says what to do instead.
if (location.protocol === "file:") {
  document.getElementById("notice").textContent =
    "A browser opens this page only from a web server: run `purecaps demo`, or `python -m http.server` in this folder.";
}
