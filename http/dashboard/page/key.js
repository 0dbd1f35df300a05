// The form that asks for the server's key, on whichever page it stands.

import { onKeyWanted, setKey } from "./sse.js";

const $ = (id) => document.getElementById(id);

onKeyWanted((wasWrong) => {
  $("key-error").textContent = wasWrong ? "The server does not know this key." : "";
  if ($("key-form").hidden) {
    $("key-form").hidden = false;
    $("key").focus();
  }
});

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey($("key").value.trim());
  $("key").value = "";
  $("key-form").hidden = true;
});
